"""The page of a file of laws."""
