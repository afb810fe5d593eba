// The whole page: its parts, and the keys that work everywhere.
import { useEffect, useLayoutEffect, useReducer, useRef, useState } from 'preact/hooks';
import { pathTo, shownTitle } from '../conversation';
import type { Session, State } from '../session';
import { Composer } from './composer';
import { EnginePanel } from './engine_panel';
import { IconButton } from './icons';
import { KeysDialog } from './keys_dialog';
import { SettingsDialog } from './settings_dialog';
import { Sidebar } from './sidebar';
import { Thread } from './thread';

type Open = 'settings' | 'keys' | null;

function useSession(session: Session): State {
  const [, tell] = useReducer((n: number, _: void) => n + 1, 0);
  useLayoutEffect(() => session.subscribe(() => tell()), [session]);
  return session.state;
}

export function App({ session }: { session: Session }) {
  const state = useSession(session);
  const { current, preferences } = state;
  const [open, setOpen] = useState<Open>(null);
  const [menu, setMenu] = useState(false); // the list of conversations, where it has no place of its own
  const [editing, setEditing] = useState<string | null>(null);
  const area = useRef<HTMLTextAreaElement>(null);
  const writing = state.writing[current.id] ?? null;
  const toMessage = () => area.current?.focus();

  useLayoutEffect(() => {
    document.title = current.title ? `${current.title} · moeflux` : 'moeflux';
    setEditing(null);
    if (!matchMedia('(pointer: coarse)').matches) toMessage(); // where that would bring up a keyboard, a tap does it
  }, [current.id]);
  useEffect(() => {
    document.title = current.title ? `${current.title} · moeflux` : 'moeflux';
  }, [current.title]);

  const editLast = () => {
    const last = pathTo(current, current.leaf).findLast((m) => m.role === 'user');
    if (last && !writing) setEditing(last.id);
  };
  const toggleEngine = () => session.prefer({ engine: !session.state.preferences.engine });

  useLayoutEffect(() => {
    const actions: Record<string, () => void> = {
      KeyN: () => session.openNew(),
      KeyE: toggleEngine,
      KeyS: () => setOpen((o) => (o === 'settings' ? null : 'settings')),
      KeyK: () => setOpen((o) => (o === 'keys' ? null : 'keys')),
      KeyR: () => current.leaf !== null && session.retry(current.leaf),
      ArrowUp: () => session.openNext(-1),
      ArrowDown: () => session.openNext(1),
    };
    const onKey = (event: KeyboardEvent) => {
      if (event.isComposing) return;
      const typing = event.target instanceof HTMLElement && event.target.closest('input, textarea, select') !== null;
      if (event.altKey && !event.ctrlKey && !event.metaKey && actions[event.code]) {
        event.preventDefault();
        actions[event.code]!();
      } else if (event.key === 'Escape') {
        if (menu) setMenu(false);
        else session.stop();
      } else if (event.key === '/' && !typing && open === null) {
        event.preventDefault();
        toMessage();
      }
    };
    document.addEventListener('keydown', onKey);
    return () => document.removeEventListener('keydown', onKey);
  });

  return (
    <div class={`page ${menu ? 'with-menu' : ''} ${preferences.engine ? 'with-engine' : ''}`}>
      <Sidebar
        session={session}
        state={state}
        onChosen={() => {
          setMenu(false);
          toMessage();
        }}
      />
      {menu && <button type="button" class="shade" aria-label="Close the list of conversations" onClick={() => setMenu(false)} />}
      <main>
        <header class="top">
          <IconButton icon="menu" label="Conversations" className="only-narrow" pressed={menu} onClick={() => setMenu(!menu)} />
          <h1 title={shownTitle(current)}>{shownTitle(current)}</h1>
          {state.server && (
            <span class="model only-wide" title={state.server.context ? `context of ${state.server.context} tokens` : ''}>
              {state.server.model}
            </span>
          )}
          <IconButton icon="engine" label="Engine (Alt+E)" pressed={preferences.engine} onClick={toggleEngine} />
          <IconButton icon="sliders" label="Settings (Alt+S)" onClick={() => setOpen('settings')} />
          <IconButton icon="keyboard" label="Keys (Alt+K)" className="only-wide" onClick={() => setOpen('keys')} />
        </header>
        {state.serverError && <ServerError session={session} state={state} openSettings={() => setOpen('settings')} />}
        <Thread session={session} conversation={current} writing={writing} editing={editing} setEditing={setEditing} />
        <Composer
          conversation={current.id}
          writing={writing !== null}
          area={area}
          onSend={(text) => session.send(text)}
          onStop={() => session.stop()}
          onEditLast={editLast}
        />
      </main>
      {preferences.engine && <EnginePanel apiKey={preferences.key} onClose={toggleEngine} />}
      {open === 'settings' && <SettingsDialog session={session} state={state} onClose={() => setOpen(null)} />}
      {open === 'keys' && <KeysDialog onClose={() => setOpen(null)} />}
      <Notices session={session} state={state} />
      <div class="unseen" role="status" aria-live="polite">
        {state.announcement}
      </div>
    </div>
  );
}

function ServerError({ session, state, openSettings }: { session: Session; state: State; openSettings: () => void }) {
  const needsKey = state.serverError?.status === 401;
  return (
    <p class="banner" role="alert">
      {needsKey ? 'This server wants an API key.' : `${state.serverError?.message}.`}{' '}
      <button type="button" onClick={needsKey ? openSettings : () => void session.askServer()}>
        {needsKey ? 'Enter it' : 'Try again'}
      </button>
    </p>
  );
}

function Notices({ session, state }: { session: Session; state: State }) {
  return (
    <div class="notices" role="status" aria-live="polite">
      {state.notices.map((notice) => (
        <div key={notice.id} class={`notice ${notice.kind}`}>
          <span>{notice.text}</span>
          {notice.undo && (
            <button
              type="button"
              onClick={() => {
                notice.undo!();
                session.dismiss(notice.id);
              }}
            >
              Undo
            </button>
          )}
          <IconButton icon="close" label="Dismiss" onClick={() => session.dismiss(notice.id)} />
        </div>
      ))}
    </div>
  );
}
