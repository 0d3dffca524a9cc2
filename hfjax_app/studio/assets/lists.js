// Puts the example file of the tab Sentiment into its field, as if the visitor had chosen it.
document.addEventListener("click", (event) => {
  const button = event.target.closest?.("[data-example]");
  const field = document.querySelector("#many-file input[type=file]");
  if (!button || !field) return;
  const chosen = new DataTransfer();
  chosen.items.add(new File([button.dataset.example], button.dataset.name, { type: "text/csv" }));
  field.files = chosen.files;
  field.dispatchEvent(new Event("change", { bubbles: true }));
});
