// Some characters of the conversation stand in Gradio's Markdown as numbers, or between invisible characters
// (markdown.py). Copied text gets neither.
(() => {
  const asWritten = (text) =>
    text.replaceAll("\u2060", "").replace(/&#(00\d\d);/g, (_, code) => String.fromCharCode(Number(code)));
  window.studio = Object.assign(window.studio ?? {}, { asWritten });
  if (navigator.clipboard) {
    const write = navigator.clipboard.writeText.bind(navigator.clipboard);
    navigator.clipboard.writeText = (text) => write(asWritten(text));
  }
  document.addEventListener("copy", (event) => {
    const selected = getSelection().toString();
    if (!selected.includes("\u2060")) return;
    event.clipboardData.setData("text/plain", selected.replaceAll("\u2060", ""));
    event.preventDefault();
  });
})();
