"""What all commands share: options, help, progress and how they end."""
