"""Receiving reports: buffers for uploads, turns for transfers, and the sums that they become."""
