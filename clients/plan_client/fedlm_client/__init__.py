"""Takes part in a deployment of fedlm by plans: models of LiteRT that the server sends, which need none of its code."""
