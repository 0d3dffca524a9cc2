// The conversation shows typed HTML with an invisible character behind each "<" (transcript.py). It is removed from
// copied text.
(() => {
  const asTyped = (text) => text.replaceAll("<\u2060", "<");
  if (navigator.clipboard) {
    const write = navigator.clipboard.writeText.bind(navigator.clipboard);
    navigator.clipboard.writeText = (text) => write(asTyped(text));
  }
  document.addEventListener("copy", (event) => {
    const selected = getSelection().toString();
    if (asTyped(selected) === selected) return;
    event.clipboardData.setData("text/plain", asTyped(selected));
    event.preventDefault();
  });
})();
