"""Tests of the Python module, on the model in models/storyteller."""

import json
import os
import tempfile
import threading
import unittest

import moeflux

PACKAGE = os.environ["MOEFLUX_STORYTELLER"]


def open_model(**options):
    return moeflux.Model(PACKAGE, backend="cpu", threads=2, ctx=256, **options)


class ModelTest(unittest.TestCase):
    def test_says_what_it_is(self):
        with open_model(sequences=2) as model:
            self.assertEqual(model.info["ctx"], 256)
            self.assertEqual(model.info["backend"], "cpu")
            self.assertGreater(model.plan["expert_bytes"], 0)
            model.load_experts()
            self.assertEqual(model.stats["bytes_read"], model.plan["expert_bytes"])
        with self.assertRaises(moeflux.Error) as caught:
            model.info
        self.assertEqual(caught.exception.status, "INVALID_HANDLE")

    def test_errors_have_a_status_and_a_message(self):
        with self.assertRaisesRegex(moeflux.Error, "no/such") as caught:
            moeflux.Model("/no/such/package")
        self.assertEqual(caught.exception.status, "NOT_FOUND")
        with self.assertRaisesRegex(moeflux.Error, "abacus"):
            moeflux.Model(PACKAGE, backend="abacus")

    def test_reports_progress_and_messages(self):
        reports, messages = [], []
        model = open_model(
            on_progress=lambda what, done, total: reports.append((what, done, total)),
            on_log=lambda warning, message: messages.append(message),
        )
        model.load_experts()
        self.assertEqual({what for what, _, _ in reports}, {"loading", "loading experts"})
        self.assertIn("storyteller", messages[0])

    def test_text(self):
        model = open_model()
        text = "The cat sat on the mat. Größe!"
        tokens = model.tokenize(text, start=False)
        self.assertEqual(model.detokenize(tokens), text)
        self.assertEqual(b"".join(model.token_bytes(t) for t in tokens), text.encode())
        messages = [{"role": "user", "content": "Tell me a story."}]
        rendered = model.apply_template(messages)
        self.assertIn("Tell me a story.", rendered)
        self.assertEqual(model.apply_template(json.dumps(messages)), rendered)
        self.assertEqual(model.detokenize(model.chat_tokens(messages)), rendered)
        self.assertEqual(model.parse_answer(messages, "Once.")["text"], "Once.")


class GenerateTest(unittest.TestCase):
    def setUp(self):
        self.model = open_model(sequences=2, precision="exact")
        self.context = moeflux.Context(self.model, 2)
        self.prompt = self.model.tokenize("Once upon a time")
        self.greedy = self.model.sampling(temperature=0)

    def generate(self, **options):
        return self.context.generate(self.prompt, sampling=self.greedy, max_tokens=20, continued=True, **options)

    def test_generation_is_evaluation_and_choice(self):
        result = self.generate()
        self.assertEqual(result.finish, "length")
        self.context.clear()
        tokens, logits = [], self.context.eval(self.prompt)
        for _ in result.tokens:
            tokens.append(logits.argmax())
            logits = self.context.eval(tokens[-1:])
        self.assertEqual(tokens, result.tokens)
        self.assertEqual(self.context.tokens(), self.prompt + tokens)
        self.assertEqual(self.context.pos_max(), len(self.prompt) + 19)
        sampler = moeflux.Sampler(self.model, self.greedy)
        self.assertEqual(sampler.sample(logits, 0), logits.argmax())
        view = memoryview(logits)
        self.assertEqual((view.shape, view.format), ((1, self.model.info["n_vocab"]), "f"))

    def test_guesses(self):
        want = self.generate()
        self.context.clear()
        result = self.generate(draft=3, draft_from="ngram")
        self.assertEqual(result.tokens, want.tokens)
        self.assertGreaterEqual(result.n_guessed, result.n_right)
        with self.assertRaises(ValueError):
            self.generate(draft=3, draft_from="nowhere")

    def test_two_sequences_in_one_batch(self):
        both = self.context.eval([5, 6, 7, 8], sequence=[0, 1, 0, 1], want_logits=[False, False, True, True])
        self.context.clear(0)
        self.context.clear(1)
        first, second = self.context.eval([5, 7], 0), self.context.eval([6, 8], 1)
        self.assertEqual(bytes(both), bytes(first) + bytes(second))

    def test_callbacks(self):
        pieces = []
        result = self.generate(on_text=pieces.append)
        self.assertEqual("".join(pieces), result.text)
        self.context.clear()
        self.assertEqual(self.generate(on_text=lambda piece: False).finish, "stop")
        self.context.clear()

        def fail(piece):
            raise KeyError("mine")

        with self.assertRaises(KeyError):
            self.generate(on_text=fail)

    def test_stream(self):
        want = self.generate().text
        self.context.clear()
        stream = self.context.stream(self.prompt, sampling=self.greedy, max_tokens=20, continued=True)
        self.assertIsNone(stream.result)
        self.assertEqual("".join(stream), want)
        self.assertEqual(stream.result.text, want)
        # Leaving early ends it, and the context is free again.
        self.context.clear()
        stream = self.context.stream(self.prompt, sampling=self.greedy, ignore_stop_tokens=True)
        for n, _ in enumerate(stream):
            if n == 3:
                break
        stream.close()
        self.assertEqual(stream.result.finish, "cancelled")
        self.assertLess(self.context.pos_max(), len(self.prompt) + 10)
        self.context.clear()
        with self.assertRaisesRegex(moeflux.Error, "empty"):
            list(self.context.stream([]))

    def test_a_stream_that_is_dropped_ends(self):
        for piece in self.context.stream(self.prompt, sampling=self.greedy, ignore_stop_tokens=True):
            break
        self.context.clear()

    def test_cancel_from_another_thread(self):
        cancel, started = moeflux.Cancel(), threading.Event()

        def stop():
            started.wait()
            cancel.set()

        other = threading.Thread(target=stop)
        other.start()
        result = self.context.generate(
            self.prompt,
            on_text=lambda piece: started.set(),
            sampling=self.greedy,
            ignore_stop_tokens=True,
            cancel=cancel,
        )
        other.join()
        self.assertEqual(result.finish, "cancelled")

    def test_sequences(self):
        self.context.eval(self.prompt)
        state = self.context.save()
        after = bytes(self.context.eval([7]))
        self.context.copy(0, 1)
        self.context.remove(len(self.prompt))
        self.assertEqual(bytes(self.context.eval([7])), after)
        self.assertEqual(self.context.tokens(1), self.prompt + [7])
        self.context.load(state, 1)
        self.assertEqual(bytes(self.context.eval([7], 1)), after)
        self.context.checkpoint(1)
        self.context.eval([8, 9], 1)
        self.assertEqual(self.context.checkpoints(1), [len(self.prompt) + 1])
        self.context.restore_to(len(self.prompt) + 1, 1)
        self.assertEqual(self.context.tokens(1), self.context.tokens(0))
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "state")
            self.context.save_file(path)
            self.context.clear()
            self.context.load_file(path)
        self.assertEqual(self.context.tokens(), self.prompt + [7])
        with self.assertRaises(moeflux.Error) as caught:
            self.context.load(state[:-1])
        self.assertEqual(caught.exception.status, "CORRUPT")

    def test_schemas_and_wrong_options(self):
        result = self.generate(json_schema={"enum": ["red", "blue"]})
        self.assertIn(json.loads(result.text), ["red", "blue"])
        with self.assertRaises(TypeError):
            self.model.sampling(temprature=1)
        with self.assertRaises(moeflux.Error) as caught:
            self.context.eval([1 << 31])
        self.assertEqual(caught.exception.status, "INVALID_ARGUMENT")


if __name__ == "__main__":
    unittest.main()
