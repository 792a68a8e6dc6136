"""The parts of the page that touch samples and clocks, each by itself, in the browser that runs them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import numpy as np
import pytest
import pytest_asyncio
from chromium import Browsers
from demo_page import DemoPage, demo_page
from scripted_server import KEY, scripted_server

from duologue.codecs import g711

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def demo(browsers: Browsers) -> AsyncIterator[DemoPage]:
    browser = await browsers.running()
    async with scripted_server() as server, demo_page(browser, f"http://{server.address}/#key={KEY}") as page:
        await page.page.click("#mood")  # the gesture that browsers want before sound
        yield page


async def test_fc_096_sound_at_24_khz_keeps_its_length_and_pitch_at_the_devices_rate(demo: DemoPage) -> None:
    result = await demo.page.evaluate(
        """async () => {
          const { Sound } = await import('/demo/js/sound.js');
          const { Player } = await import('/demo/js/player.js');
          const sound = await new Sound(new AudioContext({ sampleRate: 48000 })).begin(null);
          const player = new Player(sound);
          const analyser = new AnalyserNode(sound.context, { fftSize: 16384, smoothingTimeConstant: 0 });
          sound.output.connect(analyser);
          const ended = new Promise((resolve) => {
            const report = player.report.bind(player);
            player.node.port.onmessage = ({ data }) => {
              report(data);
              if (data.position) player.last = data.position.ms;
              if (data.ended) resolve(sound.context.currentTime);
            };
          });
          const began = sound.context.currentTime;
          for (let piece = 0; piece < 50; piece++) {  // 2 s of 440 Hz in pieces of 40 ms
            const samples = Int16Array.from({ length: 960 }, (_, index) => (
              8000 * Math.sin((2 * Math.PI * 440 * (piece * 960 + index)) / 24000)
            ));
            player.add('item', samples);
          }
          const spectrum = new Float32Array(analyser.frequencyBinCount);
          while (!(player.last > 1000)) await new Promise((resolve) => setTimeout(resolve, 20));
          analyser.getFloatFrequencyData(spectrum);
          const peak = spectrum.indexOf(Math.max(...spectrum));
          const seconds = (await ended) - began;
          await sound.close();
          return { hertz: (peak * 48000) / 16384, seconds, ms: player.last };
        }"""
    )
    assert abs(result["hertz"] - 440) < 6
    assert abs(result["ms"] - 2000) < 5
    assert 1.95 < result["seconds"] < 4  # a busy machine may begin late, but plays no faster


async def test_clearing_says_how_much_was_heard_of_every_item(demo: DemoPage) -> None:
    cleared = await demo.page.evaluate(
        """async () => {
          const { Sound } = await import('/demo/js/sound.js');
          const { Player } = await import('/demo/js/player.js');
          const sound = await Sound.open(null);
          const player = new Player(sound);
          player.add('first', new Int16Array(48000));
          player.add('second', new Int16Array(48000));
          while (sound.context.currentTime < 0.5) await new Promise((resolve) => setTimeout(resolve, 20));
          const cleared = await player.clear();
          const again = await player.clear();
          await sound.close();
          return { cleared, again, playing: player.playing };
        }"""
    )
    first, second = cleared["cleared"]
    assert (first["item"], second["item"], second["ms"]) == ("first", "second", 0)
    assert 0 < first["ms"] < 2000
    assert cleared["again"] == []
    assert cleared["playing"] is None


async def test_g711_is_the_servers_own(demo: DemoPage) -> None:
    samples = np.arange(-32768, 32768, 7, dtype=np.int16)
    codes = np.arange(256, dtype=np.uint8)
    ours = await demo.page.evaluate(
        """async ([samples, codes]) => {
          const { Decoder, Encoder } = await import('/demo/js/g711.js');
          return ['audio/pcmu', 'audio/pcma'].map((format) => [
            samples.map(new Encoder(format).law),
            codes.map((code) => new Decoder(format).table[code]),
          ]);
        }""",
        [samples.tolist(), codes.tolist()],
    )
    for (encoded, decoded), encode, decode in zip(
        ours, (g711.encode_ulaw, g711.encode_alaw), (g711.decode_ulaw, g711.decode_alaw), strict=True
    ):
        assert decoded == np.frombuffer(decode(codes.tobytes()), np.int16).tolist()
        theirs = np.frombuffer(encode(samples.tobytes()), np.uint8)
        levels = np.frombuffer(decode(codes.tobytes()), np.int16).astype(int)
        # a sample half way between two steps may go either way: both are as near
        wrong = np.abs(levels[encoded] - samples) - np.abs(levels[theirs] - samples)
        assert np.abs(wrong).max() <= 1024


@pytest.mark.parametrize(("source", "target"), [(48_000, 24_000), (44_100, 24_000), (24_000, 48_000), (24_000, 8_000)])
async def test_resampling_is_the_same_in_any_pieces_and_keeps_a_tone(demo: DemoPage, source: int, target: int) -> None:
    result = await demo.page.evaluate(
        """async ([source, target]) => {
          const { Resampler } = await import('/demo/js/resampler.js');
          const value = (_, index) => 0.5 * Math.sin((2 * Math.PI * 700 * index) / source);
          const tone = Float32Array.from({ length: source }, value);
          const whole = new Resampler(source, target).push(tone);
          const stream = new Resampler(source, target);
          const pieces = [];
          for (let at = 0, size = 1; at < tone.length; at += size, size = ((size * 7) % 331) + 1) {
            pieces.push(...stream.push(tone.subarray(at, at + size)));
          }
          const same = pieces.length === whole.length && whole.every((v, i) => Math.abs(v - pieces[i]) < 1e-6);
          return { same, samples: [...whole] };
        }""",
        [source, target],
    )
    assert result["same"]
    samples = np.array(result["samples"])
    assert abs(len(samples) - target) < 64
    middle = samples[target // 4 : 3 * target // 4]
    spectrum = np.abs(np.fft.rfft(middle * np.hanning(len(middle))))
    assert abs(spectrum.argmax() * target / len(middle) - 700) < 3
    assert abs(np.abs(middle).max() - 0.5) < 0.01


async def test_the_parts_of_a_turn_add_up_to_what_was_heard(demo: DemoPage) -> None:
    turns = await demo.page.evaluate(
        """async () => {
          const { Turns, parts, total } = await import('/demo/js/turns.js');
          let now = 0;
          const turns = new Turns(() => now);
          const at = (ms, event) => { now = ms; turns.take(event); };
          const level = (from, to, side, value) => {
            for (now = from; now < to; now += 20) turns[side + 'Level'](value);
          };
          level(0, 1000, 'input', 0.0005);
          level(1000, 2000, 'input', 0.2);
          at(1200, { type: 'input_audio_buffer.speech_started', item_id: 'u' });
          level(1200, 2000, 'input', 0.2);
          level(2000, 2500, 'input', 0.0005);
          at(2500, { type: 'input_audio_buffer.speech_stopped', item_id: 'u' });
          at(2510, { type: 'response.created', response: { id: 'r', conversation_id: 'c' } });
          at(2600, { type: 'response.output_audio_transcript.delta', response_id: 'r' });
          at(2700, { type: 'response.output_audio.delta', response_id: 'r' });
          level(2740, 2800, 'output', 0.2);
          at(4000, { type: 'response.done', response: { id: 'r', status: 'cancelled' } });
          const [turn] = turns.all;
          const split = parts(turn).map(({ name, ms }) => [name, ms]);
          return { parts: split, total: total(turn), cut: turn.cut, began: turn.began };
        }"""
    )
    assert turns["parts"] == [["stopped", 520], ["asked", 10], ["words", 90], ["sound", 100], ["heard", 40]]
    assert (turns["total"], turns["cut"], turns["began"]) == (760, 4000, 1000)
