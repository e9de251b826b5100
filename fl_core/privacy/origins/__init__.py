"""Where parameters, vocabularies and relevances come from, and what they tell of people."""
