// Microphones and cameras: which there are, and opening one.

import { Problem } from './problems.js';

export const SCREEN = 'screen'; // what stands in the list of cameras for a screen, a window or a tab

/** A stream of the microphone. Throws a `Problem`. */
export async function openMicrophone(deviceId) {
  if (!window.isSecureContext || !navigator.mediaDevices) throw new Problem('insecure-origin');
  const audio = { echoCancellation: true, noiseSuppression: true, autoGainControl: true };
  if (deviceId) audio.deviceId = { exact: deviceId };
  try {
    return await navigator.mediaDevices.getUserMedia({ audio });
  } catch (error) {
    throw new Problem(
      { NotFoundError: 'no-microphone', OverconstrainedError: 'no-microphone', NotAllowedError: 'microphone-refused' }[
        error.name
      ] ?? 'microphone-busy',
      error.message,
    );
  }
}

/** A stream of a camera, or of what the person shares if the id is `SCREEN`. Throws a `Problem`. */
export async function openPicture(deviceId) {
  if (!navigator.mediaDevices) throw new Problem('insecure-origin');
  const video = { width: { ideal: 640 }, height: { ideal: 480 }, frameRate: { max: 15 } };
  const shared = { frameRate: { max: 5 } }; // larger, at rest mostly, and the server decodes every frame
  try {
    if (deviceId === SCREEN) return await navigator.mediaDevices.getDisplayMedia({ video: shared });
    return await navigator.mediaDevices.getUserMedia({
      video: deviceId ? { ...video, deviceId: { exact: deviceId } } : video,
    });
  } catch (error) {
    throw new Problem(deviceId === SCREEN ? 'no-screen' : 'no-camera', error.message);
  }
}

/** Fill the two lists, now and whenever a device comes or goes; the choice is kept where it still exists. */
export function followDevices(microphones, pictures) {
  const refresh = async () => {
    const devices = (await navigator.mediaDevices?.enumerateDevices()) ?? [];
    fill(microphones, 'Default', devices.filter(({ kind }) => kind === 'audioinput'));
    const screen = navigator.mediaDevices?.getDisplayMedia ? [{ deviceId: SCREEN, label: 'Screen' }] : [];
    fill(pictures, 'Default camera', [...devices.filter(({ kind }) => kind === 'videoinput'), ...screen]);
  };
  navigator.mediaDevices?.addEventListener('devicechange', refresh);
  refresh();
  return refresh;
}

function fill(select, none, devices) {
  const chosen = select.value;
  const named = devices.filter(({ deviceId }) => deviceId && deviceId !== 'default');
  const options = named.map(({ deviceId, label }, index) => new Option(label || `Device ${index + 1}`, deviceId));
  select.replaceChildren(new Option(none, ''), ...options);
  select.value = named.some(({ deviceId }) => deviceId === chosen) ? chosen : '';
}

/** The picture that a video element shows now, as a JPEG data URI. */
export function still(video, longestSide = 640) {
  const scale = Math.min(1, longestSide / Math.max(video.videoWidth, video.videoHeight));
  const canvas = document.createElement('canvas');
  canvas.width = Math.round(video.videoWidth * scale);
  canvas.height = Math.round(video.videoHeight * scale);
  canvas.getContext('2d').drawImage(video, 0, 0, canvas.width, canvas.height);
  return canvas.toDataURL('image/jpeg', 0.8);
}
