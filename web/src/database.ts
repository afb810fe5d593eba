// Conversations in the browser's database, one record each. Nothing leaves the browser.
import type { Conversation } from './conversation';
import { readKept } from './transfer';

const kStore = 'conversations';

function done<T>(request: IDBRequest<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error ?? new Error('the database failed'));
  });
}

export class Database {
  private constructor(private readonly db: IDBDatabase) {}

  static async open(): Promise<Database> {
    const request = indexedDB.open('moeflux', 1);
    request.onupgradeneeded = () => request.result.createObjectStore(kStore, { keyPath: 'id' });
    return new Database(await done(request));
  }

  // What can be read, and how many records cannot.
  async all(): Promise<{ conversations: Conversation[]; unreadable: number }> {
    const records = (await done(this.store('readonly').getAll())) as unknown[];
    const conversations: Conversation[] = [];
    for (const record of records) {
      try {
        conversations.push(readKept(record));
      } catch (error) {
        console.warn('a kept conversation cannot be read:', error);
      }
    }
    return { conversations, unreadable: records.length - conversations.length };
  }

  async one(id: string): Promise<Conversation | undefined> {
    const record: unknown = await done(this.store('readonly').get(id));
    return record === undefined ? undefined : readKept(record);
  }

  async put(conversation: Conversation): Promise<void> {
    await done(this.store('readwrite').put(conversation));
  }

  async remove(id: string): Promise<void> {
    await done(this.store('readwrite').delete(id));
  }

  private store(mode: IDBTransactionMode): IDBObjectStore {
    return this.db.transaction(kStore, mode).objectStore(kStore);
  }
}
