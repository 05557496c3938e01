// The page as a whole: which view is open, and the key. Start reading here.

import { Chat } from './chat.js';
import { by_id } from './element.js';
import { Kitchen } from './kitchen.js';
import { api_key, set_api_key } from './server.js';

const chat = new Chat();
const kitchen = new Kitchen();

function show_view() {
  if (location.hash === '#main') return; // the skip link
  const name = location.hash === '#/kitchen' ? 'kitchen' : 'chat';
  for (const view of ['chat', 'kitchen']) {
    by_id(view).hidden = view !== name;
    if (view === name) by_id(`to-${view}`).setAttribute('aria-current', 'page');
    else by_id(`to-${view}`).removeAttribute('aria-current');
  }
  document.title = name === 'kitchen' ? 'Kitchen · Galley' : 'Galley';
  kitchen.shown = name === 'kitchen';
  window.scrollTo(0, 0);
}

by_id('key-open').addEventListener('click', () => {
  by_id('key').value = api_key();
  by_id('key-dialog').showModal();
});
by_id('key-cancel').addEventListener('click', () => by_id('key-dialog').close());
by_id('key-form').addEventListener('submit', () => {
  set_api_key(by_id('key').value.trim());
  chat.load_models();
  kitchen.plan(0);
});

window.addEventListener('hashchange', show_view);
show_view();
chat.load_models();
