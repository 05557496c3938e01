// What a keyboard, a screen reader and weak eyes need of a page, checked inside
// the browser. `find_barriers(page)` gives one line for each thing found.
//
// Own checks, so they are few: names, references, landmarks, headings, contrast
// (WCAG 2.1 AA, 4.5:1, large text 3:1), overflow, and that focus can be seen.

function look() {
  const found = [];
  const visible = (node) => node.checkVisibility({ visibilityProperty: true }) && node.getClientRects().length > 0;
  const where = (node) => `${node.tagName.toLowerCase()}${node.id ? `#${node.id}` : ''}.${[...node.classList].join('.')}`;

  const text_of_ids = (ids) => ids.split(/\s+/).map((id) => document.getElementById(id)?.textContent ?? '').join(' ');
  const name_of = (node) => (node.getAttribute('aria-label')
    ?? (node.hasAttribute('aria-labelledby') ? text_of_ids(node.getAttribute('aria-labelledby')) : null)
    ?? (node.labels?.length ? [...node.labels].map((label) => label.textContent).join(' ') : null)
    ?? (/^(BUTTON|A|SUMMARY)$/.test(node.tagName) ? node.textContent : '')).trim();

  for (const node of document.querySelectorAll('a, button, input, select, textarea, summary, progress, svg[role=img], dialog, [role=region], [tabindex="0"]')) {
    if (visible(node) && !name_of(node)) found.push(`no name: ${where(node)}`);
  }
  for (const attribute of ['aria-labelledby', 'aria-describedby', 'aria-controls', 'for']) {
    for (const node of document.querySelectorAll(`[${attribute}]`)) {
      for (const id of node.getAttribute(attribute).split(/\s+/)) {
        if (!document.getElementById(id)) found.push(`${attribute} leads nowhere: ${where(node)} -> ${id}`);
      }
    }
  }
  const ids = [...document.querySelectorAll('[id]')].map((node) => node.id);
  for (const id of ids.filter((one, index) => ids.indexOf(one) !== index)) found.push(`id used twice: ${id}`);

  for (const [what, selector] of [['main', 'main'], ['banner', 'body > header'], ['navigation', 'nav']]) {
    if (document.querySelectorAll(selector).length !== 1) found.push(`not one ${what}`);
  }
  if (!document.documentElement.lang) found.push('no language');
  if (!document.querySelector('[aria-live=polite]')) found.push('no polite live region');
  let depth = 0;
  const headings = [...document.querySelectorAll('h1, h2, h3, h4')].filter(visible);
  for (const heading of headings) {
    const level = Number(heading.tagName[1]);
    if (level > depth + 1) found.push(`heading jumps to ${level}: ${heading.textContent}`);
    depth = level;
  }
  if (headings.filter(({ tagName }) => tagName === 'H1').length !== 1) found.push('not one visible h1');

  // Contrast of every visible text against the nearest painted background.
  const rgba = (color) => {
    const [r, g, b, a = 1] = color.match(/[\d.]+/g).map(Number);
    return { r, g, b, a };
  };
  const light = ({ r, g, b }) => [r, g, b]
    .map((part) => part / 255)
    .map((part) => (part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4))
    .reduce((sum, part, index) => sum + part * [0.2126, 0.7152, 0.0722][index], 0);
  const background = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const color = rgba(getComputedStyle(at).backgroundColor);
      if (color.a === 1) return color;
    }
    return { r: 255, g: 255, b: 255 };
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !visible(node) || node.closest('.sr-only, option')) continue;
    const style = getComputedStyle(node);
    const paint = node instanceof SVGElement ? style.fill : style.color;
    const [high, low] = [light(rgba(paint)), light(background(node))].sort((a, b) => b - a);
    const ratio = (high + 0.05) / (low + 0.05);
    const large = parseFloat(style.fontSize) >= 24;
    if (ratio < (large ? 3 : 4.5)) found.push(`contrast ${ratio.toFixed(2)}: ${where(node)} "${walker.currentNode.data.trim().slice(0, 30)}"`);
  }

  const over = document.documentElement.scrollWidth - innerWidth;
  if (over > 0) found.push(`wider than the window by ${over} px`);
  return found;
}

// Walks with Tab through the whole page: everything that can be used is reached, and shows it.
async function walk(page) {
  const wanted = await page.evaluate(() => {
    document.activeElement.blur();
    const all = [...document.querySelectorAll('a, button, input, select, textarea, summary')];
    return all.filter((node) => !node.disabled && node.checkVisibility({ visibilityProperty: true })
      && node.getClientRects().length > 0 && !node.closest('dialog:not([open])')).length;
  });
  const found = [];
  const reached = new Set();
  for (let i = 0; i < wanted + 40; ++i) {
    await page.keyboard.press('Tab');
    const at = await page.evaluate(() => {
      const node = document.activeElement;
      if (!node || node === document.body) return null;
      node.dataset.walk ??= String(Math.random());
      const style = getComputedStyle(node);
      const frame = node.closest('.composer');
      const seen = (style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) > 0)
        || (frame && getComputedStyle(frame).boxShadow !== 'none');
      return { mark: node.dataset.walk, seen, control: /^(A|BUTTON|INPUT|SELECT|TEXTAREA|SUMMARY)$/.test(node.tagName), what: `${node.tagName}#${node.id}` };
    });
    if (at === null) continue;
    if (reached.has(at.mark)) break;
    if (!at.seen) found.push(`focus is not seen: ${at.what}`);
    if (at.control) reached.add(at.mark);
  }
  if (reached.size < wanted) found.push(`Tab reaches ${reached.size} of ${wanted} controls`);
  return found;
}

export async function find_barriers(page) {
  return [...await page.evaluate(look), ...await walk(page)];
}
