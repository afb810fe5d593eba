// The list of conversations.
import { useLayoutEffect, useRef, useState } from 'preact/hooks';
import { type Conversation, shownTitle } from '../conversation';
import type { Session, State } from '../session';
import { Icon, IconButton } from './icons';

interface Props {
  session: Session;
  state: State;
  onChosen: () => void; // closes it where it covers the page
}

export function Sidebar({ session, state, onChosen }: Props) {
  const [renaming, setRenaming] = useState<string | null>(null);
  const [query, setQuery] = useState('');
  const file = useRef<HTMLInputElement>(null);
  const wanted = query.trim().toLowerCase();
  const shown = wanted ? state.conversations.filter((c) => matches(c, wanted)) : state.conversations;
  return (
    <nav class="sidebar" id="sidebar" aria-label="Conversations">
      <button
        type="button"
        class="new"
        onClick={() => {
          session.openNew();
          onChosen();
        }}
      >
        <Icon name="plus" /> New conversation
      </button>
      <input
        type="search"
        placeholder="Search"
        aria-label="Search conversations"
        value={query}
        onInput={(event) => setQuery(event.currentTarget.value)}
      />
      <ul>
        {shown.map((c) => (
          <li key={c.id} class={c.id === state.current.id ? 'current' : ''}>
            {renaming === c.id ? (
              <RenameField
                title={c.title}
                onDone={(title) => {
                  setRenaming(null);
                  if (title !== null) session.rename(c.id, title);
                }}
              />
            ) : (
              <>
                <button
                  type="button"
                  class="title"
                  aria-current={c.id === state.current.id ? 'true' : undefined}
                  title={shownTitle(c)}
                  onClick={() => {
                    session.open(c.id);
                    onChosen();
                  }}
                >
                  {state.writing[c.id] && <span class="dot" title="Being written" />}
                  {shownTitle(c)}
                </button>
                <span class="item-actions">
                  <IconButton icon="edit" label={`Rename ${shownTitle(c)}`} onClick={() => setRenaming(c.id)} />
                  <IconButton icon="out" label={`Export ${shownTitle(c)}`} onClick={() => download(session.exportFile([c.id]), shownTitle(c))} />
                  <IconButton icon="bin" label={`Delete ${shownTitle(c)}`} onClick={() => session.remove(c.id)} />
                </span>
              </>
            )}
          </li>
        ))}
      </ul>
      {state.ready && shown.length === 0 && <p class="hint">{wanted ? 'Nothing found.' : 'No conversations yet.'}</p>}
      <div class="row">
        <button type="button" onClick={() => file.current!.click()}>
          <Icon name="in" /> Import
        </button>
        <button type="button" disabled={state.conversations.length === 0} onClick={() => download(session.exportFile(null), 'conversations')}>
          <Icon name="out" /> Export all
        </button>
        <input
          ref={file}
          type="file"
          accept=".json,application/json"
          class="unseen"
          tabIndex={-1}
          aria-label="File to import"
          onChange={(event) => {
            const input = event.currentTarget;
            const chosen = input.files?.[0];
            if (chosen) void chosen.text().then((text) => session.importFile(text));
            input.value = ''; // the same file may be chosen again
            onChosen();
          }}
        />
      </div>
    </nav>
  );
}

function matches(conversation: Conversation, wanted: string): boolean {
  return (
    shownTitle(conversation).toLowerCase().includes(wanted) || conversation.messages.some((m) => m.text.toLowerCase().includes(wanted))
  );
}

function RenameField({ title, onDone }: { title: string; onDone: (title: string | null) => void }) {
  const field = useRef<HTMLInputElement>(null);
  const done = useRef(false);
  const finish = (value: string | null) => {
    if (done.current) return; // leaving the field after Enter or Escape
    done.current = true;
    onDone(value);
  };
  useLayoutEffect(() => field.current!.select(), []); // before anything can be typed
  return (
    <input
      ref={field}
      class="rename"
      aria-label="Title"
      defaultValue={title}
      maxLength={200}
      onBlur={(event) => finish(event.currentTarget.value)}
      onKeyDown={(event) => {
        if (event.key === 'Enter' && !event.isComposing) finish(event.currentTarget.value);
        if (event.key === 'Escape') {
          event.stopPropagation();
          finish(null);
        }
      }}
    />
  );
}

function download(text: string, name: string): void {
  const address = URL.createObjectURL(new Blob([text], { type: 'application/json' }));
  const link = document.createElement('a');
  link.href = address;
  link.download = `moeflux ${name.replace(/[^\p{L}\p{N} _-]/gu, '').trim().slice(0, 60) || 'conversation'}.json`;
  link.click();
  window.setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
