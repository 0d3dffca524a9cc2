// Values of the page outlive a reload: sessionStorage keeps them for this browser tab until it is closed. In a frame
// without storage, a reload starts with an empty page.
(() => {
  const restored = new Set(); // a component reports its first, empty value before its stored value is restored
  window.studio = Object.assign(window.studio ?? {}, {
    load: (name) => {
      restored.add(name);
      try {
        return JSON.parse(sessionStorage.getItem(name));
      } catch {
        return null;
      }
    },
    store: (name, value) => {
      if (!restored.has(name)) return;
      try {
        sessionStorage.removeItem(name); // if the new value is too large, better none than an outdated one
        sessionStorage.setItem(name, JSON.stringify(value));
      } catch {}
    },
  });
})();
