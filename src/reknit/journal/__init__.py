"""Where events, intents and incidents are written down before anything is done about them."""
