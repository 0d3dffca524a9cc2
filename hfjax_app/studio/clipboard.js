// The conversation shows typed HTML with an unseen character behind each "<" (transcript.py); what is copied has none.
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
