"""What has been released and who took part, on disk before anybody sees it."""
