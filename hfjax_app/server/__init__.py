"""The web server: the ASGI app, /health, middleware, a clean start and end."""
