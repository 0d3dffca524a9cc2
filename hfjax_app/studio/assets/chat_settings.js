// The settings of a conversation: kept with it, and presets, of which visitors save their own.
(() => {
  const { chat } = studio;
  // The components in chat_settings.py, in their order, and their elements.
  const NAMES = [
    "system_prompt",
    "max_tokens",
    "temperature",
    "top_p",
    "top_k",
    "seed",
    "min_p",
    "repetition_penalty",
    "stop",
    "think",
  ];
  const SAMPLING = ["temperature", "top_p", "top_k", "min_p", "repetition_penalty"];
  const PRESETS = {
    Precise: { temperature: 0.2, top_p: 0.9, top_k: 0, min_p: 0, repetition_penalty: 1 },
    Balanced: { temperature: 0.7, top_p: 0.95, top_k: 0, min_p: 0, repetition_penalty: 1 },
    Creative: { temperature: 1.1, top_p: 1, top_k: 0, min_p: 0.05, repetition_penalty: 1 },
  };
  const OWN = "Model's own";
  const KEY = "hfjax.presets";
  const escape = (text) => text.replace(/[&<>"']/g, (character) => `&#${character.charCodeAt(0)};`);

  let values = {}; // by name, as the page has them
  const saved = () => {
    try {
      return JSON.parse(localStorage.getItem(KEY)) ?? {};
    } catch {
      return {};
    }
  };
  const presets = () => ({ ...PRESETS, [OWN]: chat.facts?.recommended ?? {}, ...saved() });
  const matches = (preset) => Object.entries(preset).every(([name, value]) => values[name] === value);
  const apply = (chosen) =>
    chat.set({ settings: NAMES.map((name) => chosen[name] ?? values[name] ?? { __type__: "update" }) });
  const usual = () => ({
    system_prompt: "",
    max_tokens: chat.facts.max_tokens,
    seed: "",
    stop: "",
    ...chat.facts.recommended,
  });

  function draw() {
    const place = document.querySelector("#presets");
    const buttons = document.querySelector("#preset-buttons");
    if (!place || !chat.facts) return;
    const own = saved();
    const all = presets();
    const now = [...Object.keys(own), OWN, ...Object.keys(PRESETS)].find((name) => all[name] && matches(all[name]));
    const html = Object.keys(all)
      .map(
        (name) =>
          `<label><input type="radio" name="preset" value="${escape(name)}"${name === now ? " checked" : ""}>${escape(
            name,
          )}</label>`,
      )
      .join("");
    if (place.dataset.html !== html) {
      place.dataset.html = html;
      place.innerHTML = `<fieldset><legend>Preset</legend><div class="choice">${html}</div></fieldset>`;
    } else for (const radio of place.querySelectorAll("input")) radio.checked = radio.value === now;
    const canDelete = now !== undefined && now in own;
    const foot = `<div class="row"><button class="btn" type="button" data-do="${canDelete ? "delete-preset" : "save-preset"}">${
      canDelete ? "Delete this preset" : "Save as preset"
    }</button><button class="btn plain" type="button" data-do="reset">Reset</button></div>
      <form class="row" id="preset-form" hidden><input type="text" maxlength="24" required aria-label="Name of the preset"
      placeholder="Name"><button class="btn main" type="submit">Save</button></form>`;
    if (buttons.dataset.html !== foot) {
      buttons.dataset.html = foot;
      buttons.innerHTML = foot;
    }
    buttons.dataset.now = now ?? "";
  }

  chat.settings = {
    NAMES,
    // Reported by Gradio, in the order of NAMES.
    changed(all) {
      values = Object.fromEntries(NAMES.map((name, at) => [name, all[at]]));
      draw();
      if (chat.facts) chat.list.keepSettings(values);
    },
    now: () => values,
    // The value that an emptied number field returns to.
    usual: (id) => chat.facts && usual()[id?.replaceAll("-", "_")],
    // For `set`: a conversation's settings, else the usual ones.
    all(kept) {
      const chosen = { ...usual(), ...kept };
      values = Object.fromEntries(NAMES.map((name) => [name, chosen[name]]));
      draw();
      return NAMES.map((name) => chosen[name]);
    },
  };

  function save(name) {
    const kept = { ...saved(), [name]: Object.fromEntries([...SAMPLING, "system_prompt"].map((each) => [each, values[each]])) };
    try {
      localStorage.setItem(KEY, JSON.stringify(kept));
    } catch {}
    draw();
  }
  document.addEventListener("change", (event) => {
    if (event.target.name === "preset") apply(presets()[event.target.value]);
  });
  document.addEventListener("submit", (event) => {
    if (event.target.id !== "preset-form") return;
    event.preventDefault();
    const name = event.target.querySelector("input").value.trim();
    if (!name || name in PRESETS || name === OWN) return;
    save(name);
    document.querySelector("#preset-buttons button")?.focus();
  });
  document.addEventListener("click", (event) => {
    const action = event.target.closest?.("#preset-buttons [data-do]")?.dataset.do;
    if (action === "reset") apply(usual());
    if (action === "save-preset") {
      const form = document.querySelector("#preset-form");
      form.hidden = false;
      form.querySelector("input").focus();
    }
    if (action === "delete-preset") {
      const kept = saved();
      delete kept[document.querySelector("#preset-buttons").dataset.now];
      localStorage.setItem(KEY, JSON.stringify(kept));
      draw();
      document.querySelector("#preset-buttons button")?.focus();
    }
  });
  chat.on("started", draw);
})();
