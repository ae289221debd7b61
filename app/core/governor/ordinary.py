"""Names of programs that fill the screen, or use the GPU for long, and are no games."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

_FULLSCREEN = """
brave chrome chromium chromium-browser epiphany falkon firefox firefox-bin firefox-esr
google-chrome iexplore librewolf msedge opera safari thorium vivaldi vivaldi-bin waterfox zen
celluloid clapper dragon haruna kodi microsoft.media.player mpc-be mpc-be64 mpc-hc mpc-hc64 mpv
mpvnet netflix plex plexmediaplayer potplayermini potplayermini64 smplayer totem video.ui vlc
showtime spotify wmplayer
discord obs obs64 slack teams ms-teams zoom zoom.real webexmta
acrobat acrord32 eog evince feh gwenview loupe okular papers photos powerpnt soffice.bin
simpress sumatrapdf
anydesk chiaki geforcenow gnome-connections krdc moonlight mstsc parsec parsecd remmina rustdesk
sunshine steamlink teamviewer vncviewer virt-manager virt-viewer virtualbox virtualboxvm vmware
vmplayer alacritty code codium devenv emacs foot gnome-terminal-server idea64 kitty konsole
nvim-qt pycharm64 sublime_text wezterm-gui windowsterminal
explorer lockapp logonui screensaver searchhost shellexperiencehost startmenuexperiencehost
applicationframehost dwm textinputhost
cinnamon gnome-shell kwin_wayland kwin_x11 kscreenlocker_greet marco muffin mutter plasmashell
sway xfdesktop xfwm4 xscreensaver swaylock i3lock xorg xwayland hyprland
epicgameslauncher eadesktop galaxyclient gamescope heroic itch lutris playnite.desktopapp
playnite.fullscreenapp steam steamwebhelper ubisoftconnect upc battle.net riotclientux
"""
"""Browsers, players, calls, documents, remote desktops, editors, the desktop itself, launchers."""
_FULLSCREEN_STEMS = frozenset(_FULLSCREEN.split())

_TOOLS = re.compile(
    r"""
    proton\b.* | steamlinuxruntime.* | steamworks\ shared | steamworks\ common\ redistributables
    | steamvr.* | steam\ controller\ configs | wallpaper_engine | lossless\ scaling | soundpad
    | blender | krita | aseprite | obs\ studio | godot.* | gamemaker.* | rpg\ maker.*
    | 3dmark.*demo\ content | fpsvr | displayfusion | borderless\ gaming | crosshair\ x
    | ovr\ ?toolkit | xsoverlay | desktop\+? | source\ filmmaker | substance.* | marmoset.*
    | gimp | fl\ studio.* | mouse\ without\ borders | directxwarehouse | xboxgames
    """,
    re.VERBOSE | re.IGNORECASE,
)
"""Folders of Steam's library, and of others, that hold no game."""

_HELPERS = re.compile(
    r"""
    .*crash(handler|report|reporter|pad|sender|dump).* | .*crashpad.* | unitycrashhandler\d*
    | (un)?ins(tall)?\d* | unins\d+ | setup.* | .*_?setup | .*installer.* | vc_?redist.* | dxsetup
    | dotnet.* | .*prereq.* | .*touchup | cleanup | .*redist.* | .*updater | patcher
    | eac_?launcher | easyanticheat.* | beservice.* | battleye.* | .*webhelper.* | cefsharp.*
    | services | winedevice | plugplay | svchost | rpcss | explorer | tabtip | conhost | wineboot
    | gameoverlayui.* | steamerrorreporter.* | fossilize_replay
    """,
    re.VERBOSE | re.IGNORECASE,
)
"""Programs beside a game that run before, after or without it."""


def stem(name: str) -> str:
    """`VLC.exe` as `vlc`."""
    return name.casefold().removesuffix(".exe")


def fills_screens(name: str) -> bool:
    """Whether this executable is known to be fullscreen without being a game."""
    return stem(name) in _FULLSCREEN_STEMS


def is_tool(title: str) -> bool:
    """Whether this title from a game library names a tool or a runtime."""
    return bool(_TOOLS.fullmatch(title.strip()))


def is_helper(name: str) -> bool:
    """Whether an executable in a game's folder is none that plays it."""
    return bool(_HELPERS.fullmatch(stem(PurePosixPath(name).name)))
