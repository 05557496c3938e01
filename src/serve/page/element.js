// Builds DOM nodes. Text goes in as text nodes: there is no way here to turn a
// string into markup.

const SVG = 'http://www.w3.org/2000/svg';

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith('on')) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? '' : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

export function element(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function drawing(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

export const by_id = (id) => document.getElementById(id);

// Only what changed is written, so that screen readers and selections are left alone.
export function set_text(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// Builds the children of `node` again only when `key` says that they changed.
const keys = new WeakMap();
export function refill(node, key, build) {
  if (keys.get(node) === key) return;
  keys.set(node, key);
  node.replaceChildren(...build());
}

export function announce(text) {
  by_id('announcer').textContent = text;
}
