"""Media stage: takes requests in, and says of every image, video and audio part which one it is."""
