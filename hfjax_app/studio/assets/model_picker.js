// Runs once for each list of models, with Gradio's `element`, `props`, `trigger` and `watch`. The server renders the options and
// does not know the page's choice, which is kept here and in the browser's tab.
const list = () => element.querySelector('select');
const find = (name) => [...list().options].find((option) => option.value === name && !option.disabled);
let current = null;

const stored = () => {
  try {
    return sessionStorage.getItem(props.storage);
  } catch {
    return null; // a frame without storage
  }
};

const pick = (name, isDifferent) => {
  current = name;
  list().value = name;
  trigger('input', {});
  if (isDifferent) trigger('select', {});
};

// After each rendering: the choice stays. If its model is gone, the first one takes its place.
const settle = () => {
  if (!list()) return;
  const wanted = find(current ?? stored());
  const first = [...list().options].find((option) => !option.disabled);
  if (wanted) {
    if (current === null) pick(wanted.value, wanted !== first);
    else list().value = current;
  } else if (first && current !== first.value) {
    pick(first.value, current !== null);
  }
};

element.addEventListener('change', () => {
  const name = list().value;
  try {
    sessionStorage.setItem(props.storage, name);
  } catch {}
  pick(name, true);
});
element.addEventListener('focusin', () => trigger('focus', {}));
watch('value', settle);
settle();
