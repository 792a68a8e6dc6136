/** Base64 of a Uint8Array of a few thousand bytes. */
export const encode = (bytes) => btoa(String.fromCharCode(...bytes));

/** The bytes of base64 text, in a buffer of their own. */
export const decode = (text) => Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
