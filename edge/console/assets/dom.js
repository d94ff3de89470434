// The few ways in which the script touches the page. Text is always set as text; nothing here takes markup.

export const $ = (id) => document.getElementById(id);

export function el(tag, props = {}, ...children) {
  const { role, ...rest } = props;
  const e = Object.assign(document.createElement(tag), rest);
  if (role) e.setAttribute('role', role);
  e.append(...children);
  return e;
}

// setText leaves the page alone where nothing changed, so that neither the browser nor a screen reader has work.
export function setText(where, text) {
  const e = typeof where === 'string' ? $(where) : where;
  if (e.textContent !== String(text)) e.textContent = text;
}
