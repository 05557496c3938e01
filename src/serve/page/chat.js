// The chat view: conversations, the thread, the composer, the settings.

import { parse_tools, request_body, stream_answer } from './answer.js';
import { Conversations, title_of } from './conversations.js';
import { announce, by_id, element, set_text } from './element.js';
import { MessageView, numbers_text } from './message_view.js';
import { get_json } from './server.js';

const SPOKEN_MAX = 600; // characters of an answer that a screen reader is told at once

export class Chat {
  constructor() {
    this.conversations = new Conversations();
    this.running = null; // AbortController of the answer that comes
    this.views = [];
    this.listen();
    this.show_conversation();
  }

  listen() {
    by_id('composer').addEventListener('submit', (event) => {
      event.preventDefault();
      this.send();
    });
    by_id('prompt').addEventListener('keydown', (event) => {
      if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.send();
    });
    by_id('chat').addEventListener('keydown', (event) => {
      if (event.key === 'Escape' && this.running) this.stop();
    });
    by_id('stop').addEventListener('click', () => this.stop());
    by_id('regenerate').addEventListener('click', () => this.regenerate());
    by_id('conversation-new').addEventListener('click', () => {
      this.stop();
      this.conversations.add();
      this.show_conversation();
      by_id('prompt').focus();
    });
    by_id('shelf-toggle').addEventListener('click', (event) => {
      const open = by_id('conversations').classList.toggle('open');
      event.currentTarget.setAttribute('aria-expanded', String(open));
    });
    by_id('settings-form').addEventListener('submit', (event) => event.preventDefault());
    by_id('settings-form').addEventListener('input', (event) => {
      this.conversation.settings[event.target.name] = event.target.value;
      this.check_tools();
      this.save();
    });
  }

  get conversation() {
    return this.conversations.current;
  }

  async load_models() {
    const select = by_id('model');
    try {
      const { data } = await get_json('/v1/models');
      select.replaceChildren(...data.map(({ id }) => element('option', { value: id }, id)));
      this.notice('');
    } catch (error) {
      select.replaceChildren();
      this.notice(error.message);
    }
    select.disabled = select.options.length < 2;
  }

  notice(text) {
    set_text(by_id('chat-notice'), text);
    by_id('chat-notice').hidden = !text;
  }

  // ---- what is shown

  show_conversation() {
    const { messages, settings } = this.conversation;
    for (const field of by_id('settings-form').elements) {
      if (field.name) field.value = settings[field.name] ?? '';
    }
    this.check_tools();
    by_id('messages').replaceChildren();
    this.views = [];
    for (const message of messages) this.add_view(message);
    const waits = messages.at(-1)?.numbers?.finish === 'tool_calls';
    if (waits) this.views.at(-1).ask_results();
    this.show_list();
    this.show_buttons();
    this.scroll(true);
  }

  show_list() {
    set_text(by_id('chat-title'), title_of(this.conversation));
    by_id('chat-empty').hidden = this.conversation.messages.length > 0;
    by_id('conversations').replaceChildren(...this.conversations.list.map((one) => {
      const title = title_of(one);
      const current = one === this.conversation;
      return element('li', {},
        element('button', {
          type: 'button', class: 'entry', 'aria-current': current ? 'true' : null,
          onclick: () => this.open(one.id),
        }, title),
        element('button', {
          type: 'button', class: 'quiet small', 'aria-label': `Delete: ${title}`,
          onclick: () => this.remove(one),
        }, 'Delete'));
    }));
  }

  show_buttons() {
    const busy = this.running !== null;
    const last = this.conversation.messages.at(-1);
    by_id('send').hidden = busy;
    by_id('stop').hidden = !busy;
    by_id('regenerate').hidden = busy || last === undefined;
    set_text(by_id('regenerate'), last?.role === 'assistant' ? 'Regenerate' : 'Try again');
  }

  add_view(message) {
    const view = new MessageView(message, {
      on_copy: () => navigator.clipboard?.writeText(message.content)
        .then(() => announce('Copied.'), () => announce('The browser did not allow copying.')),
      on_result: (results) => {
        for (const result of results) this.add_message(result);
        this.answer();
      },
    });
    this.views.push(view);
    by_id('messages').append(view.node);
    return view;
  }

  add_message(message) {
    this.conversation.messages.push(message);
    return this.add_view(message);
  }

  check_tools() {
    const note = by_id('tools-error');
    try {
      parse_tools(this.conversation.settings.tools);
      note.hidden = true;
      return true;
    } catch (error) {
      set_text(note, `The tools are no JSON list: ${error.message}`);
      note.hidden = false;
      return false;
    }
  }

  // Follows the text unless the reader has scrolled away from its end.
  scroll(always = false) {
    // On a narrow screen the page scrolls, not the list.
    const own = getComputedStyle(by_id('messages')).overflowY !== 'visible';
    const list = own ? by_id('messages') : document.scrollingElement;
    const away = list.scrollHeight - list.scrollTop - list.clientHeight;
    if (always || away < 120) list.scrollTop = list.scrollHeight;
  }

  save() {
    if (!this.conversations.save()) this.notice('This browser keeps no more: the conversation is lost when the tab closes.');
  }

  // ---- what the reader does

  open(id) {
    this.stop();
    this.conversations.open(id);
    this.show_conversation();
    by_id('prompt').focus();
  }

  remove(conversation) {
    if (conversation === this.conversation) this.stop();
    this.conversations.remove(conversation.id);
    this.show_conversation();
    by_id('conversation-new').focus();
    announce('Conversation deleted.');
  }

  send() {
    const text = by_id('prompt').value;
    if (this.running || !text.trim()) return;
    by_id('prompt').value = '';
    this.add_message({ role: 'user', content: text });
    this.answer();
  }

  stop() {
    this.running?.abort();
  }

  regenerate() {
    if (this.running) return;
    const { messages } = this.conversation;
    while (messages.at(-1)?.role === 'assistant') {
      messages.pop();
      this.views.pop().node.remove();
    }
    this.answer();
  }

  async answer() {
    this.notice('');
    if (!this.check_tools()) {
      by_id('settings').open = true;
      this.save();
      this.show_buttons();
      return;
    }
    const conversation = this.conversation;
    const body = request_body(conversation, by_id('model').value);
    const message = { role: 'assistant', content: '', reasoning: '', tool_calls: [] };
    const view = this.add_message(message);
    const running = (this.running = new AbortController());
    view.busy = true;
    this.show_list();
    this.show_buttons();
    this.scroll(true);
    let drawn = true;
    const draw = () => {
      if (!drawn) return;
      drawn = false;
      requestAnimationFrame(() => {
        drawn = true;
        view.update();
        this.scroll();
      });
    };
    try {
      await stream_answer(body, message, running.signal, draw);
    } catch (error) {
      if (error.name === 'AbortError') message.numbers = { ...message.numbers, finish: 'stopped' };
      else this.fail(conversation, message, view, error);
    }
    this.end(conversation, view);
  }

  // An answer of which nothing came leaves no empty message behind.
  fail(conversation, message, view, error) {
    this.notice(error.message);
    if (message.content || message.reasoning || message.tool_calls.length > 0) {
      message.numbers = { ...message.numbers, finish: 'failed' };
      return;
    }
    conversation.messages.splice(conversation.messages.indexOf(message), 1);
    this.views = this.views.filter((one) => one !== view); // perhaps another conversation is open
    view.node.remove();
  }

  end(conversation, view) {
    this.running = null;
    view.busy = false;
    view.update();
    if (view.message.numbers?.finish === 'tool_calls') view.ask_results();
    this.save();
    this.show_list();
    this.show_buttons();
    if (conversation === this.conversation) this.scroll();
    const { content, numbers } = view.message;
    announce(`${content.slice(0, SPOKEN_MAX)} ${numbers_text(numbers)}`);
  }
}
