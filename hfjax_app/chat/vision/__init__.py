"""Pictures in a conversation: from their pixels to the embeddings that a chat model reads in the place of tokens."""
