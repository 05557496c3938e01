// Shows a growing text: paragraphs as they stand, ``` fences as code blocks.
//
// Everything becomes text nodes, so markup in a model's answer is shown, never
// obeyed. Only the blocks that changed are touched.

import { element } from './element.js';

// [{code, text}]; an open fence is a code block already.
export function blocks_of(whole) {
  const blocks = [];
  let code = false;
  let lines = [];
  const close = () => {
    const joined = lines.join('\n');
    const text = code ? joined : joined.replace(/^\n+|\n+$/g, ''); // blocks have their own distance
    if (text) blocks.push({ code, text });
    lines = [];
  };
  for (const line of whole.split('\n')) {
    if (/^\s{0,3}```/.test(line)) {
      close();
      code = !code;
    } else {
      lines.push(line);
    }
  }
  close();
  return blocks;
}

export class TextView {
  constructor(node) {
    this.node = node;
    this.shown = [];
  }

  show(text) {
    const blocks = blocks_of(text);
    blocks.forEach((block, index) => {
      const old = this.shown[index];
      if (old && old.code === block.code) {
        if (old.text !== block.text) old.leaf.data = block.text;
        old.text = block.text;
        return;
      }
      const leaf = document.createTextNode(block.text);
      const node = block.code
        ? element('pre', { tabindex: '0', 'aria-label': 'Code' }, element('code', {}, leaf))
        : element('p', { class: 'said' }, leaf);
      if (old) old.node.replaceWith(node);
      else this.node.append(node);
      this.shown[index] = { ...block, node, leaf };
    });
    for (const gone of this.shown.splice(blocks.length)) gone.node.remove();
  }
}
