"""Takes part in a deployment of fedlm by plans: programs that the server sends, which need none of its code."""
