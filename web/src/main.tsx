// Where the page begins.
import { render } from 'preact';
import { Session } from './session';
import { App } from './ui/app';

const session = new Session();
render(<App session={session} />, document.getElementById('app')!);
void session.start();
