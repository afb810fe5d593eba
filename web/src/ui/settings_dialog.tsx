// Settings of the conversation, which the next new one begins with too, and of the page.
import { useState } from 'preact/hooks';
import type { Theme } from '../preferences';
import { textOf, type Session, type State } from '../session';
import { kReasoning, kSamplingFields, parseExtra, type Reasoning, samplingFault, type SamplingField, type Settings } from '../settings';
import { Dialog } from './dialog';

const kReasoningNames: Record<Reasoning, string> = { '': 'as the model does by itself', none: 'off', low: 'low', medium: 'medium', high: 'high' };

export function SettingsDialog({ session, state, onClose }: { session: Session; state: State; onClose: () => void }) {
  const { settings } = state.current;
  const set = (change: Partial<Settings>) => session.setSettings({ ...session.state.current.settings, ...change });
  return (
    <Dialog title="Settings" onClose={onClose}>
      <section>
        <h3>This conversation</h3>
        <label class="field">
          System prompt
          <textarea rows={4} value={settings.system} onInput={(event) => set({ system: event.currentTarget.value })} />
        </label>
        <div class="grid">
          {kSamplingFields.map((field) => (
            <NumberField
              key={field.name}
              field={field}
              value={settings.sampling[field.name]}
              standard={state.server?.defaults[field.name]}
              onChange={(value) => {
                const sampling = { ...session.state.current.settings.sampling };
                if (value === null) delete sampling[field.name];
                else sampling[field.name] = value;
                set({ sampling });
              }}
            />
          ))}
          <label class="field">
            Reasoning
            <select value={settings.reasoning} onChange={(event) => set({ reasoning: event.currentTarget.value as Reasoning })}>
              {kReasoning.map((r) => (
                <option key={r} value={r}>
                  {kReasoningNames[r]}
                </option>
              ))}
            </select>
          </label>
        </div>
        <label class="field">
          Stop texts, one per line
          <textarea
            rows={2}
            value={settings.stop.join('\n')}
            onInput={(event) => set({ stop: event.currentTarget.value.split('\n').filter((s) => s !== '') })}
          />
        </label>
        <ExtraField extra={settings.extra} onChange={(extra) => set({ extra })} />
        <button type="button" onClick={() => set({ sampling: {}, stop: [], reasoning: '', extra: '' })}>
          Back to the server's values
        </button>
      </section>
      <section>
        <h3>This page</h3>
        <label class="field">
          API key
          <input
            type="password"
            autocomplete="off"
            value={state.preferences.key}
            onChange={(event) => session.prefer({ key: event.currentTarget.value.trim() })}
          />
          <span class="hint">Kept in this browser, sent to this server only, never exported.</span>
        </label>
        <label class="field">
          Colours
          <select value={state.preferences.theme} onChange={(event) => session.prefer({ theme: event.currentTarget.value as Theme })}>
            <option value="auto">as the system</option>
            <option value="light">light</option>
            <option value="dark">dark</option>
          </select>
        </label>
        <p class="hint">
          {state.server?.version} · <a href="licenses.txt">Licences of what this page contains</a>
        </p>
      </section>
    </Dialog>
  );
}

interface NumberFieldProps {
  field: SamplingField;
  value: number | undefined;
  standard: number | undefined; // the server's
  onChange: (value: number | null) => void;
}

function NumberField({ field, value, standard, onChange }: NumberFieldProps) {
  const [fault, setFault] = useState<string | null>(null);
  const id = `field-${field.name}`;
  return (
    <div class="field">
      <label for={id}>{field.label}</label>
      <input
        id={id}
        type="number"
        inputMode="decimal"
        min={field.min}
        max={field.max}
        step="any"
        value={value ?? ''}
        placeholder={standard === undefined ? '' : String(Number(standard.toPrecision(4)))}
        aria-invalid={fault !== null}
        aria-describedby={`${id}-hint`}
        onInput={(event) => {
          const input = event.currentTarget;
          if (input.value === '' && !input.validity.badInput) {
            setFault(null);
            return onChange(null);
          }
          const wrong = samplingFault(field, input.valueAsNumber);
          setFault(wrong);
          if (!wrong) onChange(input.valueAsNumber);
        }}
      />
      <span id={`${id}-hint`} class={fault ? 'fault' : 'hint'}>
        {fault ?? field.hint}
      </span>
    </div>
  );
}

function ExtraField({ extra, onChange }: { extra: string; onChange: (extra: string) => void }) {
  const [text, setText] = useState(extra);
  const [fault, setFault] = useState<string | null>(null);
  return (
    <label class="field">
      More fields of the request, as JSON
      <textarea
        rows={2}
        class="code"
        spellcheck={false}
        value={text}
        placeholder='{"response_format": {"type": "json_object"}}'
        aria-invalid={fault !== null}
        onInput={(event) => {
          const next = event.currentTarget.value;
          setText(next);
          try {
            parseExtra(next);
            setFault(null);
            onChange(next);
          } catch (error) {
            setFault(textOf(error));
          }
        }}
      />
      {fault && <span class="fault">Not used: {fault}</span>}
    </label>
  );
}
