"""Any torch module as a compiled, sharded, warm JAX program. Independent of chat, sentiment and images."""
