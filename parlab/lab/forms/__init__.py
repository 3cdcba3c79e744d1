"""How a configuration is shown: titles of sections, fields without effect, presets."""
