"""How `hfjax_app/embedded/sentiment` was made: grammar -> corpus -> tokenizer -> DistilBERT classifier -> scores."""
