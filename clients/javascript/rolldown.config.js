export default {
  input: { page: "src/web/page.ts", worker: "src/web/worker.ts" },
  platform: "browser",
  resolve: { extensionAlias: { ".js": [".ts", ".js"] } },
  output: { dir: "build/page", format: "es", minify: true, entryFileNames: "[name].js", chunkFileNames: "shared.js" },
};
