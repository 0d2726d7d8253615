"""What a user calls a model: configuration, decoder, LanguageModel and `load`. Nothing is imported here, so that parts stay cheap."""
