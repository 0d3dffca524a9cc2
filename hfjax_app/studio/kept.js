// What a visitor said and made outlives a reload of the page: the browser keeps it for this tab alone, and as long as
// the tab is open. A page whose frame may keep nothing starts anew.
(() => {
  const read = new Set(); // a component reports its first, empty value before it has been given what was kept
  window.studio = {
    kept: (name) => {
      read.add(name);
      try {
        return JSON.parse(sessionStorage.getItem(name));
      } catch {
        return null;
      }
    },
    keep: (name, value) => {
      if (!read.has(name)) return;
      try {
        sessionStorage.removeItem(name); // rather nothing than what is out of date, where the new value has no room
        sessionStorage.setItem(name, JSON.stringify(value));
      } catch {}
    },
  };
})();
