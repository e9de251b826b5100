"""What is in a token store, for people to look at: in numbers, in a picture and as samples."""
