// Panels beside a tab's content: open or closed as the visitor left them, drawers in narrow windows.
//
// A button with data-flip opens and closes the panel of that name; the one with aria-controls stands beside the content.
// The page's root says data-NAME="open" or "closed", for the styles.
(() => {
  // The names, each with the windows in which the panel is a drawer.
  const PANELS = {
    "chat-left": matchMedia("(max-width: 860px)"),
    "chat-settings": matchMedia("(max-width: 1180px)"),
    "image-settings": matchMedia("(max-width: 1180px)"),
  };
  const page = document.documentElement;
  const attribute = (panel) => `data-${panel}`;
  const isOpen = (panel) => page.getAttribute(attribute(panel)) !== "closed";
  const openers = (panel) => document.querySelectorAll(`[data-flip="${panel}"][aria-controls]`);

  function show(panel, open, { focus = false } = {}) {
    page.setAttribute(attribute(panel), open ? "open" : "closed");
    for (const each of openers(panel)) each.setAttribute("aria-expanded", String(open));
    if (!PANELS[panel].matches) {
      try {
        localStorage.setItem(`hfjax.${panel}`, open ? "open" : "closed");
      } catch {}
    }
    if (!focus) return;
    if (open) document.getElementById(panel)?.querySelector("button, input, textarea, a")?.focus();
    else openers(panel)[0]?.focus();
  }
  function fit(panel) {
    let kept = "open";
    try {
      kept = localStorage.getItem(`hfjax.${panel}`) ?? "open";
    } catch {}
    show(panel, !PANELS[panel].matches && kept === "open");
  }
  for (const panel of Object.keys(PANELS)) {
    PANELS[panel].addEventListener("change", () => fit(panel));
    fit(panel);
  }
  // Buttons that Gradio has drawn since.
  new MutationObserver(() => {
    for (const each of document.querySelectorAll("[data-flip][aria-controls]:not([aria-expanded])")) {
      each.setAttribute("aria-expanded", String(isOpen(each.dataset.flip)));
    }
  }).observe(document, { subtree: true, childList: true });

  function closeDrawers() {
    for (const panel of Object.keys(PANELS)) if (PANELS[panel].matches && isOpen(panel)) show(panel, false);
  }
  document.addEventListener("click", (event) => {
    const flip = event.target.closest?.("[data-flip]");
    if (flip) {
      const panel = flip.dataset.flip;
      const opens = !isOpen(panel);
      if (opens) closeDrawers();
      show(panel, opens, { focus: !opens || PANELS[panel].matches });
      return;
    }
    for (const panel of Object.keys(PANELS)) {
      const isBeside = event.target.isConnected && !event.target.closest?.(`#${panel}, [popover], [role=listbox]`);
      if (PANELS[panel].matches && isOpen(panel) && isBeside) show(panel, false);
    }
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || document.querySelector(":popover-open")) return;
    for (const panel of Object.keys(PANELS)) {
      if (PANELS[panel].matches && isOpen(panel)) {
        event.preventDefault();
        event.stopImmediatePropagation();
        show(panel, false, { focus: true });
      }
    }
  });
  window.studio = Object.assign(window.studio ?? {}, { closeDrawers });
})();
