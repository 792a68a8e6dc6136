// The fields of a session, as the settings panel shows them. `path` is the place in the session object.

const TURNS = 'audio.input.turn_detection';
const RECOGNISER = 'audio.input.transcription';
const EFFORTS = ['minimal', 'low', 'medium', 'high', 'xhigh'];
const FORMATS = [
  ['audio/pcm', 'PCM, 24 kHz'],
  ['audio/pcmu', 'G.711 µ-law'],
  ['audio/pcma', 'G.711 A-law'],
];

const turnType = (session) => session.audio?.input?.turn_detection?.type;
const byServer = (session) => turnType(session) === 'server_vad';
const automatic = (session) => turnType(session) !== undefined;
const recognised = (session) => Boolean(session.audio?.input?.transcription);
const judged = (session) => session.interruption?.mode === 'adaptive';
const reduced = (session) => Boolean(session.audio?.input?.noise_reduction);

/** A choice between objects told apart by their `type`, or another field, or null. */
const kind = (options, tag = 'type') => ({
  control: 'select',
  options,
  read: (value) => value?.[tag] ?? '',
  write: (choice) => (choice === '' ? null : { [tag]: choice }),
});

export const GROUPS = [
  {
    title: 'Voice',
    fields: [
      { path: 'audio.output.voice', label: 'Voice', control: 'select', options: 'voices', help: 'Fixed once the assistant has spoken.' },
      { path: 'audio.output.speed', label: 'Speed', control: 'range', min: 0.25, max: 1.5, step: 0.05, initial: 1 },
      {
        path: 'output_modalities',
        label: 'Answers',
        control: 'select',
        options: [['audio', 'spoken'], ['text', 'written']],
        initial: ['audio'],
        read: (value) => value?.[0] ?? 'audio',
        write: (choice) => [choice],
      },
    ],
  },
  {
    title: 'Turn detection',
    fields: [
      {
        path: TURNS,
        label: 'A turn ends',
        initial: { type: 'server_vad' },
        ...kind([['server_vad', 'by silence'], ['semantic_vad', 'by meaning'], ['', 'by hand']]),
      },
      { path: `${TURNS}.threshold`, label: 'Threshold', control: 'range', min: 0, max: 1, step: 0.05, initial: 0.5, when: byServer },
      { path: `${TURNS}.silence_duration_ms`, label: 'Silence that ends a turn (ms)', control: 'range', min: 0, max: 2000, step: 50, initial: 500, when: byServer },
      { path: `${TURNS}.prefix_padding_ms`, label: 'Sound kept from before speech (ms)', control: 'range', min: 0, max: 2000, step: 50, initial: 300, when: byServer },
      { path: `${TURNS}.idle_timeout_ms`, label: 'Speak up after silence of (ms)', control: 'number', min: 5000, max: 30_000, empty: null, placeholder: 'never', when: byServer },
      { path: `${TURNS}.eagerness`, label: 'Eagerness', control: 'select', options: ['auto', 'low', 'medium', 'high'], initial: 'auto', when: (session) => turnType(session) === 'semantic_vad' },
      { path: `${TURNS}.create_response`, label: 'Answer by itself', control: 'switch', initial: true, when: automatic },
      { path: `${TURNS}.interrupt_response`, label: 'Speech interrupts the answer', control: 'switch', initial: true, when: automatic },
      { path: 'interruption', label: 'What interrupts', ...kind([['', 'any speech'], ['adaptive', 'more than “mm-hmm”']], 'mode'), read: (value) => (value?.mode === 'adaptive' ? 'adaptive' : '') },
      { path: 'interruption.min_duration_ms', label: 'Speech that always does (ms)', control: 'range', min: 100, max: 5000, step: 100, initial: 800, when: judged },
      { path: 'interruption.min_words', label: 'Words that it takes', control: 'range', min: 0, max: 20, step: 1, initial: 0, when: judged },
      { path: 'interruption.acknowledgements', label: 'Words that never do', control: 'words', empty: null, placeholder: 'the English ones', when: judged },
    ],
  },
  {
    title: 'Hearing',
    fields: [
      { path: RECOGNISER, label: 'Transcripts of what you say', control: 'select', options: 'recognisers', read: (value) => value?.model ?? '', write: (choice) => (choice === '' ? null : { model: choice }) },
      { path: `${RECOGNISER}.language`, label: 'Language', control: 'text', empty: null, placeholder: 'such as en', when: recognised },
      { path: `${RECOGNISER}.languages`, label: 'Languages to expect', control: 'words', empty: null, placeholder: 'en, de', when: recognised },
      { path: `${RECOGNISER}.prompt`, label: 'What it may be about', control: 'text', empty: null, when: recognised },
      { path: `${RECOGNISER}.keywords`, label: 'Words to expect', control: 'words', empty: null, placeholder: 'separated by commas', when: recognised },
      { path: `${RECOGNISER}.delay`, label: 'Delay of transcripts', control: 'select', options: [['', 'unset'], 'minimal', 'low', 'medium', 'high', 'xhigh'], empty: null, when: recognised },
      { path: 'audio.input.noise_reduction', label: 'Noise reduction', ...kind([['', 'off'], ['near_field', 'near: headset'], ['far_field', 'far: room']]) },
      { path: 'audio.input.noise_reduction.strength', label: 'Strength', control: 'range', min: 0, max: 2, step: 0.1, initial: 1, when: reduced },
      { path: 'audio.input.echo_cancellation', label: 'Cancel echo on the server', control: 'switch', read: (value) => value !== undefined && value !== null, write: (on) => (on ? {} : null) },
      { path: 'audio.input.echo_cancellation.delay_ms', label: 'Least delay of the echo (ms)', control: 'range', min: 0, max: 2000, step: 20, initial: 0, when: (session) => Boolean(session.audio?.input?.echo_cancellation) },
      { path: 'include', label: 'Probabilities of transcripts', control: 'switch', read: (value) => Boolean(value?.length), write: (on) => (on ? ['item.input_audio_transcription.logprobs'] : null) },
    ],
  },
  {
    title: 'Answering',
    fields: [
      { path: 'instructions', label: 'Instructions', control: 'area', empty: '' },
      { path: 'max_output_tokens', label: 'Longest answer (tokens)', control: 'number', min: 1, max: 4096, empty: 'inf', placeholder: 'no limit', read: (value) => (value === 'inf' ? undefined : value) },
      { path: 'reasoning.effort', label: 'Reasoning effort', control: 'select', options: [['', 'unset'], ...EFFORTS], write: (choice) => choice || undefined },
      { path: 'tool_choice', label: 'Tool choice', control: 'select', options: ['auto', 'none', 'required'], initial: 'auto', read: (value) => (typeof value === 'string' ? value : 'auto') },
      { path: 'parallel_tool_calls', label: 'Several tools at once', control: 'switch' },
      {
        path: 'truncation',
        label: 'When the context is full',
        control: 'select',
        options: [['auto', 'forget the oldest'], ['disabled', 'fail'], ['retention_ratio', 'forget a fifth at once']],
        initial: 'auto',
        read: (value) => value?.type ?? value ?? 'auto',
        write: (choice) => (choice === 'retention_ratio' ? { type: choice, retention_ratio: 0.8 } : choice),
      },
      { path: 'tracing', label: 'Tracing', control: 'switch', read: (value) => Boolean(value), write: (on) => (on ? 'auto' : null) },
      { path: 'prompt.id', label: 'Stored prompt', control: 'text', placeholder: 'its id', write: (id) => id || undefined },
    ],
  },
  {
    title: 'On the wire',
    fields: [
      { path: 'audio.input.format', label: 'Your sound', initial: { type: 'audio/pcm' }, ...kind(FORMATS), write: (type) => format(type), socketOnly: true },
      { path: 'audio.output.first_chunk_ms', label: 'First piece of an answer (ms)', control: 'number', min: 13, max: 2000, empty: null, placeholder: 'as the engine has it' },
      { path: 'pacing', label: 'Send sound as it is played', control: 'switch', socketOnly: true, read: (value) => value !== undefined && value !== null, write: (on) => (on ? {} : null) },
      { path: 'pacing.lead_ms', label: 'How far ahead (ms)', control: 'range', min: 100, max: 10_000, step: 100, initial: 300, socketOnly: true, when: (session) => Boolean(session.pacing) },
      { path: 'audio.output.format', label: 'Its sound', initial: { type: 'audio/pcm' }, ...kind(FORMATS), write: (type) => format(type), socketOnly: true },
    ],
  },
];

const format = (type) => (type === 'audio/pcm' ? { type, rate: 24_000 } : { type });

/** The value at a path, or undefined. */
export const at = (session, path) => path.split('.').reduce((value, name) => value?.[name], session);

/** A session object with nothing but that value at that path. */
export const only = (path, value) => path.split('.').reduceRight((inner, name) => ({ [name]: inner }), value);
