"""The commands of a deployment, a module each, and what those of its server share."""
