"""Tables of texts and their users: CSV, Parquet, JSON Lines, Arrow and Hugging Face."""
