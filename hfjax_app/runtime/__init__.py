"""Any torch module as a warm JAX program. Knows nothing of chat, sentiment or images."""
