"""What a gr.HTML says to screen readers when it has another value: the attribute `data-say` of an element in it."""

SAYS = """watch('value', () => {
  const said = element.querySelector('[data-say]');
  if (said) studio.say(said.dataset.say);
});"""
