"""What central training needs of devices."""
