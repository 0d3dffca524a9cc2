// The frame of the page: tabs with addresses and arrow keys, the state of the server, seconds that tick, and a region
// that screen readers speak from.
(() => {
  const TITLE = "hfjax studio";
  const CHECK_MS = 10_000; // whether the server answers
  const GONE_CHECK_MS = 2_000;
  window.studio = window.studio ?? {};

  // A polite announcement, at most one at a time.
  studio.say = (text) => {
    let region = document.querySelector("#announcer");
    if (!region) {
      region = document.createElement("div");
      Object.assign(region, { id: "announcer", className: "sr" });
      region.setAttribute("role", "status");
      (document.querySelector("main") ?? document.body).append(region);
    }
    region.textContent = text;
  };

  // Tabs of the page ----------------------------------------------------------------------------------------------
  const pageTab = (id) => document.querySelector(`#tabs > .tab-wrapper [role=tab][data-tab-id="${CSS.escape(id)}"]`);
  const openTab = () => {
    const id = decodeURIComponent(location.hash.slice(1));
    if (id) pageTab(id)?.click();
    else document.querySelector("#tabs > .tab-wrapper [role=tab]")?.click();
  };
  addEventListener("popstate", openTab);
  const opened = new Set();
  studio.openedTabs = () => [...opened].join(" ");

  const name = (tab) => tab.textContent.trim();
  const showSelected = (list) => {
    const tabs = [...list.querySelectorAll("[role=tab]")];
    const selected = tabs.find((tab) => tab.getAttribute("aria-selected") === "true");
    for (const tab of tabs) tab.tabIndex = tab === selected || !selected ? 0 : -1;
    const panel = selected && document.getElementById(selected.getAttribute("aria-controls"));
    panel?.setAttribute("aria-labelledby", selected.id);
    if (selected && list.parentElement.parentElement.id === "tabs") {
      opened.add(selected.dataset.tabId);
      document.title = `${name(selected)} · ${TITLE}`;
      // only when it changes: the chat takes the focus then
      const page = document.documentElement;
      if (page.dataset.tab !== selected.dataset.tabId) page.dataset.tab = selected.dataset.tabId;
    }
  };
  let found = false;
  new MutationObserver((changes) => {
    const lists = new Set();
    for (const { target, type } of changes)
      if (type === "attributes") lists.add(target.closest("[role=tablist]"));
      else for (const list of target.querySelectorAll?.("[role=tablist]") ?? []) lists.add(list);
    for (const list of lists) if (list) showSelected(list);
    for (const empty of document.querySelectorAll(".empty[aria-label]:not([role])")) empty.role = "img"; // of Gradio's
    if (!found && document.querySelector("#tabs [role=tab]")) {
      found = true;
      if (location.hash) openTab();
    }
  }).observe(document, { subtree: true, childList: true, attributeFilter: ["aria-selected"] });

  // Before Gradio's own listener, which asks the server for what is in the opened tabs.
  const opens = (event) => {
    const tab = event.target.closest?.("#tabs > .tab-wrapper [role=tab]");
    if (tab) opened.add(tab.dataset.tabId);
  };
  document.addEventListener("click", opens, true);
  document.addEventListener("click", (event) => {
    const target = event.target;
    const tab = target.closest?.("#tabs > .tab-wrapper [role=tab]");
    if (tab && event.isTrusted && location.hash !== `#${tab.dataset.tabId}`) {
      history.pushState(null, "", `#${tab.dataset.tabId}`);
    }
    const link = target.closest?.('a[href^="#"]:not([data-skip], [data-open])');
    if (link) {
      event.preventDefault(); // the page's <base> would make another page of it
      history.pushState(null, "", link.getAttribute("href"));
      openTab();
    }
    if (target.closest?.("[data-skip]")) {
      event.preventDefault();
      const panel = [...document.querySelectorAll("#tabs > [role=tabpanel]")].find((each) => each.checkVisibility());
      panel?.setAttribute("tabindex", "-1");
      panel?.focus();
    }
    if (target.closest?.("[data-api]")) {
      const button = document.querySelector("footer .show-api"); // Gradio's own, which the page does not show
      if (button) {
        event.preventDefault();
        button.click();
      }
    }
  });
  document.addEventListener("keydown", (event) => {
    const tab = event.target.closest?.("[role=tab]");
    if (!tab || event.ctrlKey || event.altKey || event.metaKey) return;
    const tabs = [...tab.closest("[role=tablist]").querySelectorAll("[role=tab]:not([disabled])")];
    const last = tabs.length - 1;
    const at = tabs.indexOf(tab);
    const to = { ArrowRight: at === last ? 0 : at + 1, ArrowLeft: at === 0 ? last : at - 1, Home: 0, End: last }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    tabs[to].focus();
    tabs[to].click();
    if (tab.closest("#tabs > .tab-wrapper")) history.replaceState(null, "", `#${tabs[to].dataset.tabId}`);
  });

  // The server ------------------------------------------------------------------------------------------------------
  const page = document.documentElement;
  const check = async () => {
    let served = false;
    try {
      served = (await fetch("live", { cache: "no-store" })).ok;
    } catch {}
    const state = served ? "there" : "gone";
    if (page.dataset.server !== state) {
      if (!served) studio.say("The server is gone.");
      else if (page.dataset.server) studio.say("The server is back.");
      page.dataset.server = state;
    }
  };
  const checkLater = () =>
    setTimeout(
      async () => {
        if (!document.hidden) await check();
        checkLater();
      },
      page.dataset.server === "gone" ? GONE_CHECK_MS : CHECK_MS,
    );
  checkLater();
  addEventListener("offline", check);
  addEventListener("online", check);

  // Seconds that go on between two messages of the server, which comes to nothing else while it traces.
  setInterval(() => {
    if (page.dataset.server === "gone") return;
    for (const element of document.querySelectorAll("[data-seconds]")) {
      element.dataset.seconds = Number(element.dataset.seconds) + 1;
      element.textContent = element.dataset.seconds;
    }
  }, 1000);
})();
