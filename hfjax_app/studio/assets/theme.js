// Light or dark: the visitor's choice, else the system's. It is set before the page is drawn, and kept where Gradio sets
// the system's.
(() => {
  const kept = () => {
    try {
      return localStorage.getItem("theme");
    } catch {
      return null;
    }
  };
  const system = matchMedia("(prefers-color-scheme: dark)");
  let chosen = kept();
  const show = () => {
    const asked = new URLSearchParams(location.search).get("__theme");
    const dark = (chosen ?? (asked === "system" ? null : asked) ?? (system.matches ? "dark" : "light")) === "dark";
    for (const element of [document.documentElement, document.body]) element?.classList.toggle("dark", dark);
    return dark;
  };
  show();
  system.addEventListener("change", show);
  document.addEventListener("DOMContentLoaded", () => {
    show();
    new MutationObserver(show).observe(document.body, { attributeFilter: ["class"] });
  });
  document.addEventListener("click", (event) => {
    if (!event.target.closest?.("[data-theme-switch]")) return;
    chosen = show() ? "light" : "dark";
    try {
      localStorage.setItem("theme", chosen);
    } catch {}
    show();
  });
})();
