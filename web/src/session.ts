// The state of the page, and everything that a user can do to it. Components read `state` and call actions; each change makes a
// new state object and tells the listeners, at most once in kTellEvery while text streams in.
import { type AnswerPiece, ApiFailure, type ChatMessage, getProperties, type ServerProperties, streamChat } from './api';
import {
  type Conversation,
  findMessage,
  lastLeafBelow,
  type Message,
  newConversation,
  newMessage,
  pathTo,
  titleFrom,
  withChange,
  withMessage,
} from './conversation';
import { Database } from './database';
import { type Preferences, readPreferences, showTheme, writePreferences } from './preferences';
import { emptySettings, requestFields, type Settings } from './settings';
import { exportText, importText, readSettings } from './transfer';

const kTellEvery = 40; // ms
const kSaveEvery = 500; // ms
const kAskEvery = 3000; // ms, while the server does not answer

export interface Notice {
  id: number;
  text: string;
  kind: 'info' | 'error';
  undo?: () => void;
}

export interface Writing {
  message: string; // the answer's id
  progress: { done: number; total: number } | null; // of the prompt, until the first text
}

export interface State {
  ready: boolean; // the kept conversations have been read
  conversations: Conversation[]; // the latest first
  current: Conversation; // may not be among them yet: it is kept from its first message on
  writing: Record<string, Writing>; // by conversation: answers that are being written
  preferences: Preferences;
  server: ServerProperties | null;
  serverError: ApiFailure | null;
  notices: Notice[];
  announcement: string; // for screen readers
}

export class Session {
  state: State;
  private readonly listeners = new Set<() => void>();
  private readonly controllers = new Map<string, AbortController>();
  private readonly unsaved = new Set<string>();
  private readonly others = 'BroadcastChannel' in window ? new BroadcastChannel('moeflux') : null; // of the same browser
  private database: Database | null = null;
  private tellTimer = 0;
  private saveTimer = 0;
  private askTimer = 0;
  private lastNotice = 0;

  constructor() {
    const preferences = readPreferences();
    this.state = {
      ready: false,
      conversations: [],
      current: newConversation(),
      writing: {},
      preferences,
      server: null,
      serverError: null,
      notices: [],
      announcement: '',
    };
    this.state.current = newConversation(this.nextSettings());
    showTheme(preferences.theme);
  }

  subscribe(listener: () => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  async start(): Promise<void> {
    void this.askServer();
    window.addEventListener('pagehide', () => void this.save());
    if (this.others) this.others.onmessage = (event) => void this.readAgain(String(event.data));
    try {
      this.database = await Database.open();
      const { conversations, unreadable } = await this.database.all();
      conversations.sort((a, b) => b.changed - a.changed);
      const last = conversations.find((c) => c.id === this.state.preferences.last);
      this.set({ conversations, ...(last ? { current: last } : {}) });
      if (unreadable > 0) this.notify(`${unreadable} kept conversations cannot be read by this page`, 'error');
    } catch (error) {
      this.notify(`This browser keeps no conversations: ${textOf(error)}. Export what you want to keep.`, 'error');
    }
    this.set({ ready: true });
  }

  async askServer(): Promise<void> {
    try {
      this.set({ server: await getProperties(this.state.preferences.key), serverError: null });
    } catch (error) {
      const failure = error instanceof ApiFailure ? error : new ApiFailure(textOf(error), 0);
      this.set({ serverError: failure });
      // It may still be loading the model, or come back.
      window.clearTimeout(this.askTimer);
      if (failure.status === 0 || failure.status === 503) this.askTimer = window.setTimeout(() => void this.askServer(), kAskEvery);
    }
  }

  // -- conversations

  open(id: string): void {
    const conversation = this.state.conversations.find((c) => c.id === id);
    if (!conversation) return;
    this.set({ current: conversation });
    this.prefer({ last: id });
  }

  openNew(): void {
    if (this.state.current.messages.length === 0 && !this.isKept(this.state.current.id)) return;
    this.set({ current: newConversation(this.nextSettings()) });
    this.prefer({ last: '' });
  }

  // The one that many places before (-) or after it in the list.
  openNext(step: number): void {
    const { conversations, current } = this.state;
    const at = conversations.findIndex((c) => c.id === current.id);
    const next = conversations[at < 0 ? 0 : at + step];
    if (next) this.open(next.id);
  }

  rename(id: string, title: string): void {
    this.change(id, (c) => ({ ...c, title: title.trim().slice(0, 200) }));
  }

  remove(id: string): void {
    const gone = this.state.conversations.find((c) => c.id === id);
    if (!gone) return;
    this.stop(id);
    const conversations = this.state.conversations.filter((c) => c.id !== id);
    this.set({ conversations });
    if (this.state.current.id === id) this.set({ current: conversations[0] ?? newConversation(this.nextSettings()) });
    this.markChanged(id);
    this.notify('Conversation deleted', 'info', () => {
      this.put(gone);
      this.open(id);
    });
  }

  setSettings(settings: Settings): void {
    this.prefer({ settings: JSON.stringify(settings) });
    const { current } = this.state;
    if (this.isKept(current.id)) this.change(current.id, (c) => ({ ...c, settings }));
    else this.set({ current: { ...current, settings } });
  }

  exportFile(ids: string[] | null): string {
    return exportText(this.state.conversations.filter((c) => !ids || ids.includes(c.id)));
  }

  importFile(text: string): void {
    let imported: Conversation[];
    try {
      imported = importText(text);
    } catch (error) {
      this.notify(`Nothing was imported: ${textOf(error)}`, 'error');
      return;
    }
    for (const conversation of imported) this.put(conversation);
    if (imported[0]) this.open(imported[0].id);
    this.notify(imported.length === 1 ? 'One conversation imported' : `${imported.length} conversations imported`, 'info');
  }

  // -- messages of the conversation that is shown

  send(text: string): void {
    const { current } = this.state;
    if (text.trim() === '' || this.state.writing[current.id]) return;
    this.ask(current, newMessage(current.leaf, 'user', text));
  }

  // Another text in place of one of the user's, with its own answer, or of an answer. The first stays beside it.
  edit(id: string, text: string): void {
    const { current } = this.state;
    const old = findMessage(current, id);
    if (!old || text === old.text || this.state.writing[current.id]) return;
    if (old.role === 'user') return this.ask(current, newMessage(old.parent, 'user', text));
    this.put(withMessage(current, { ...newMessage(old.parent, 'assistant', text), end: 'edited' }));
  }

  // Another answer beside this one.
  retry(id: string): void {
    const { current } = this.state;
    const old = findMessage(current, id);
    if (!old || this.state.writing[current.id]) return;
    const question = old.role === 'user' ? old.id : old.parent;
    if (question !== null) this.answer(current, question);
  }

  show(id: string): void {
    const { current } = this.state;
    this.put({ ...current, leaf: lastLeafBelow(current, id) });
  }

  stop(conversation = this.state.current.id): void {
    this.controllers.get(conversation)?.abort();
  }

  // -- the page

  prefer(change: Partial<Preferences>): void {
    const preferences = { ...this.state.preferences, ...change };
    this.set({ preferences });
    writePreferences(preferences);
    if (change.theme) showTheme(change.theme);
    if (change.key !== undefined) void this.askServer();
  }

  notify(text: string, kind: Notice['kind'], undo?: () => void): void {
    const notice: Notice = { id: ++this.lastNotice, text, kind, ...(undo ? { undo } : {}) };
    this.set({ notices: [...this.state.notices.slice(-3), notice] });
    window.setTimeout(() => this.dismiss(notice.id), kind === 'error' ? 15_000 : 8_000);
  }

  dismiss(id: number): void {
    this.set({ notices: this.state.notices.filter((n) => n.id !== id) });
  }

  // -- inside

  private ask(conversation: Conversation, question: Message): void {
    let next = withMessage(conversation, question);
    if (!next.title && question.parent === null) next = { ...next, title: titleFrom(question.text) };
    this.answer(next, question.id);
  }

  private answer(conversation: Conversation, question: string): void {
    const answer = newMessage(question, 'assistant', '');
    const next = withMessage(conversation, answer);
    this.put(next);
    this.prefer({ last: next.id });
    void this.write(next, answer);
  }

  private async write(conversation: Conversation, answer: Message): Promise<void> {
    const { id } = conversation;
    const controller = new AbortController();
    this.controllers.set(id, controller);
    this.set({ writing: { ...this.state.writing, [id]: { message: answer.id, progress: null } }, announcement: 'Answering' });
    let end = 'failed';
    let error: string | undefined;
    try {
      await streamChat(
        {
          messages: chatMessages(conversation, answer.parent),
          fields: requestFields(conversation.settings),
          key: this.state.preferences.key,
          signal: controller.signal,
        },
        (piece) => {
          if (piece.kind === 'end') end = piece.reason;
          else this.take(id, answer.id, piece);
        },
      );
    } catch (caught) {
      end = controller.signal.aborted ? 'stopped' : 'failed';
      if (end === 'failed') error = textOf(caught);
      if (caught instanceof ApiFailure && caught.status === 401) this.set({ serverError: caught });
    }
    this.controllers.delete(id);
    this.change(id, (c) => withChange(c, answer.id, { end, ...(error !== undefined ? { error } : {}) }));
    const writing = { ...this.state.writing };
    delete writing[id];
    this.set({ writing, announcement: error !== undefined ? `The answer failed: ${error}` : end === 'stopped' ? 'Stopped' : 'Answer complete' });
    void this.save();
  }

  private take(id: string, answer: string, piece: Exclude<AnswerPiece, { kind: 'end' }>): void {
    const writing = this.state.writing[id];
    if (!writing) return;
    if (piece.kind === 'progress') {
      this.setSoon({ writing: { ...this.state.writing, [id]: { ...writing, progress: { done: piece.done, total: piece.total } } } });
      return;
    }
    const conversation = this.find(id);
    const message = conversation && findMessage(conversation, answer);
    if (!message) return;
    const change: Partial<Message> = {};
    if (piece.kind === 'text') change.text = message.text + piece.text;
    else if (piece.kind === 'reasoning') change.reasoning = (message.reasoning ?? '') + piece.text;
    else if (piece.kind === 'numbers') change.numbers = { ...message.numbers, ...piece.numbers };
    else {
      const calls = [...(message.calls ?? [])];
      const call = calls[piece.index] ?? { name: '', arguments: '' };
      calls[piece.index] = { name: call.name + piece.name, arguments: call.arguments + piece.arguments };
      change.calls = calls.filter(Boolean);
    }
    this.replace(withChange(conversation, answer, change), (state) => this.setSoon(state));
  }

  private nextSettings(): Settings {
    try {
      const { settings } = this.state.preferences;
      return settings ? readSettings(JSON.parse(settings), 'settings') : emptySettings();
    } catch {
      return emptySettings(); // of an older page
    }
  }

  private find(id: string): Conversation | undefined {
    return this.state.conversations.find((c) => c.id === id);
  }
  private isKept(id: string): boolean {
    return this.find(id) !== undefined;
  }

  private change(id: string, how: (c: Conversation) => Conversation): void {
    const conversation = this.find(id);
    if (conversation) this.replace(how(conversation), (state) => this.set(state));
  }

  // A conversation that has just been written to, or is new: it goes to the top.
  private put(conversation: Conversation): void {
    const conversations = [conversation, ...this.state.conversations.filter((c) => c.id !== conversation.id)];
    const shown = this.state.current.id === conversation.id;
    this.set({ conversations, ...(shown ? { current: conversation } : {}) });
    this.markChanged(conversation.id);
  }

  private replace(conversation: Conversation, set: (state: Partial<State>) => void): void {
    const conversations = this.state.conversations.map((c) => (c.id === conversation.id ? conversation : c));
    const shown = this.state.current.id === conversation.id;
    set({ conversations, ...(shown ? { current: conversation } : {}) });
    this.markChanged(conversation.id);
  }

  private markChanged(id: string): void {
    this.unsaved.add(id);
    if (!this.saveTimer) this.saveTimer = window.setTimeout(() => void this.save(), kSaveEvery);
  }

  private async save(): Promise<void> {
    window.clearTimeout(this.saveTimer);
    this.saveTimer = 0;
    if (!this.database) return;
    const ids = [...this.unsaved];
    this.unsaved.clear();
    try {
      for (const id of ids) {
        const conversation = this.find(id);
        await (conversation ? this.database.put(conversation) : this.database.remove(id));
        this.others?.postMessage(id);
      }
    } catch (error) {
      this.notify(`The browser did not keep the conversation: ${textOf(error)}`, 'error');
    }
  }

  // Another tab has changed a conversation. One that is being written to here stays as it is.
  private async readAgain(id: string): Promise<void> {
    if (!this.database || this.state.writing[id]) return;
    try {
      const kept = await this.database.one(id);
      const conversations = this.state.conversations.filter((c) => c.id !== id);
      if (kept) conversations.push(kept);
      conversations.sort((a, b) => b.changed - a.changed);
      const { current } = this.state;
      if (current.id !== id) this.set({ conversations });
      else this.set({ conversations, current: kept ?? newConversation(this.nextSettings()) });
    } catch (error) {
      console.warn('a conversation of another tab cannot be read:', error);
    }
  }

  private set(change: Partial<State>): void {
    this.state = { ...this.state, ...change };
    this.tell();
  }
  private setSoon(change: Partial<State>): void {
    this.state = { ...this.state, ...change };
    if (!this.tellTimer) this.tellTimer = window.setTimeout(() => this.tell(), kTellEvery);
  }
  private tell(): void {
    window.clearTimeout(this.tellTimer);
    this.tellTimer = 0;
    for (const listener of this.listeners) listener();
  }
}

// What the model is told: the system prompt and the path to `leaf`. Answers of which nothing came are left out.
export function chatMessages(conversation: Conversation, leaf: string | null): ChatMessage[] {
  const { system } = conversation.settings;
  const messages: ChatMessage[] = system.trim() ? [{ role: 'system', content: system }] : [];
  for (const m of pathTo(conversation, leaf))
    if (m.role === 'user' || m.text) messages.push({ role: m.role, content: m.text });
  return messages;
}

export function textOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
