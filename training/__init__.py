"""How the models of hfjax_app/embedded were made: data generated from a seed, training, held-out scores."""
