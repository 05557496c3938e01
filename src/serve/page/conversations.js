// The conversations of this browser, kept in its local storage: newest first,
// at most 50. When the storage is full the oldest go.
//
// message: {role, content, reasoning, tool_calls: [{id, name, arguments}], tool_call_id, numbers}

const STORE = 'galley.conversations.1';
const COUNT_MAX = 50;

const EMPTY_SETTINGS = {
  system: '', reasoning: '', temperature: '', top_p: '', max_tokens: '', seed: '', stop: '', tools: '',
};

function read() {
  try {
    const list = JSON.parse(localStorage.getItem(STORE) ?? '[]');
    return Array.isArray(list) ? list.filter((one) => Array.isArray(one?.messages)) : [];
  } catch {
    return []; // another program's bytes, or storage that is switched off
  }
}

export class Conversations {
  constructor() {
    this.list = read();
    this.current = this.list[0] ?? this.add();
  }

  // An empty conversation with the settings of the last one.
  add() {
    const empty = this.list.find((one) => one.messages.length === 0);
    if (empty) return (this.current = empty);
    const settings = { ...EMPTY_SETTINGS, ...this.current?.settings };
    const id = `${Date.now().toString(36)}-${Math.random().toString(36).slice(2, 8)}`;
    this.current = { id, title: '', messages: [], settings };
    this.list.unshift(this.current);
    this.list.length = Math.min(this.list.length, COUNT_MAX);
    return this.current;
  }

  open(id) {
    this.current = this.list.find((one) => one.id === id) ?? this.current;
  }

  remove(id) {
    this.list = this.list.filter((one) => one.id !== id);
    if (this.current.id === id) this.current = this.list[0] ?? this.add();
    this.save();
  }

  // False: nothing could be kept.
  save() {
    for (;;) {
      try {
        localStorage.setItem(STORE, JSON.stringify(this.list));
        return true;
      } catch {
        if (this.list.length <= 1) return false;
        const oldest = this.list.findLastIndex((one) => one !== this.current);
        this.list.splice(oldest, 1);
      }
    }
  }
}

export function title_of(conversation) {
  const first = conversation.messages.find((message) => message.role === 'user');
  const text = (first?.content ?? '').trim().replace(/\s+/g, ' ');
  if (!text) return 'New conversation';
  return text.length > 60 ? `${text.slice(0, 59)}…` : text;
}
